#include "common/optim/power.h"

#include <cmath>

#include "gtest/gtest.h"

namespace syncgrads {
namespace {

TEST(PowerTest, IsExactWhereItCanBe) {
  EXPECT_EQ(Power(0.5, 0), 1);
  EXPECT_EQ(Power(0.999, 1), 0.999);
  EXPECT_EQ(Power(0.5, 10), 0x1p-10);
  EXPECT_EQ(Power(3, 5), 243);
  EXPECT_EQ(Power(0, 7), 0);
}

TEST(PowerTest, StaysWithinItsBound) {
  for (const double base : {0.1, 0.9, 0.999, 0.9999}) {
    for (const uint64_t exponent : {2, 3, 17, 1000, 1023, 4097}) {
      const long double want = std::pow(static_cast<long double>(base), exponent);
      if (want < 1e-300L) continue;
      EXPECT_LE(std::fabs((Power(base, exponent) - want) / want), 2 * exponent * 0x1p-53L)
          << base << "^" << exponent;
    }
  }
}

TEST(PowerTest, VanishesForLargeExponents) {
  EXPECT_EQ(Power(0.999, uint64_t{1} << 40), 0);
  EXPECT_EQ(Power(0.9, ~uint64_t{0}), 0);
}

}  // namespace
}  // namespace syncgrads
