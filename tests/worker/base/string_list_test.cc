#include "worker/base/string_list.h"

#include <gtest/gtest.h>

#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

TEST(StringListTest, WhatIsEncodedIsDecoded) {
  const std::vector<std::string> strings = {"", "a", std::string("\0\xff", 2), "long enough"};
  const auto decoded = DecodeStrings(EncodeStrings(strings));
  SYNCGRADS_ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, strings);
}

TEST(StringListTest, EveryTruncationIsAnErrorOrAShorterList) {
  const std::string bytes = EncodeStrings({"one", "two"});
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto decoded = DecodeStrings(bytes.substr(0, length));
    if (length == 0 || length == 8 + 3) {
      SYNCGRADS_EXPECT_OK(decoded);
    } else {
      EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss) << length;
    }
  }
}

TEST(StringListTest, ALengthBeyondTheEndIsAnError) {
  ExpectError(DecodeStrings(EncodeNumber(~uint64_t{0}) + "abc"), absl::StatusCode::kDataLoss,
              {"18446744073709551615", "3"});
}

}  // namespace
}  // namespace syncgrads
