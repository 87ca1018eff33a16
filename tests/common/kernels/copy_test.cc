#include "common/kernels/copy.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/kernels/every_target.h"

namespace syncgrads {
namespace {

TEST(CopyFar, CopiesEveryByteAndNoOtherOnEveryTarget) {
  constexpr size_t kFar = 256 << 10;
  std::vector<std::byte> from(kFar + 1000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, kFar - 1, kFar, kFar + 333}) {
    for (const size_t shift : {0, 1, 17, 63}) {
      SCOPED_TRACE(absl::StrCat(bytes, " bytes, shifted by ", shift));
      OnEveryTarget([&] {
        std::vector<std::byte> to(bytes + 200, std::byte{0xee});
        CopyFar(to.data() + shift, from.data() + shift / 2, bytes);
        EXPECT_EQ(bytes == 0 ? 0 : std::memcmp(to.data() + shift, from.data() + shift / 2, bytes),
                  0);
        for (size_t i = 0; i < to.size(); ++i) {
          if (i == shift) i += bytes;
          ASSERT_EQ(to[i], std::byte{0xee}) << "written at " << i;
        }
      });
    }
  }
}

}  // namespace
}  // namespace syncgrads
