#include "worker/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace syncgrads {
namespace {

// The examples of RFC 3720, appendix B.4.
TEST(Crc32cTest, IsThatOfTheStandard) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising.push_back(static_cast<char>(i));
    falling.push_back(static_cast<char>(31 - i));
  }
  EXPECT_EQ(Crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(Crc32c(falling), 0x113fdb5cu);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

// The mask is a rotation by 15 bits and the addition of a constant. The masked checksum of the
// empty string is the constant.
TEST(Crc32cTest, IsMaskedAsTfrecordsHaveIt) {
  EXPECT_EQ(MaskedCrc32c(""), 0xa282ead8u);
  const uint32_t crc = Crc32c("123456789");
  const uint32_t unmasked = MaskedCrc32c("123456789") - 0xa282ead8u;
  EXPECT_EQ((unmasked >> 17) | (unmasked << 15), crc);
}

}  // namespace
}  // namespace syncgrads
