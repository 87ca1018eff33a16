// base^exponent for the bias corrections of Adam.

#ifndef SYNCGRADS_COMMON_OPTIM_POWER_H_
#define SYNCGRADS_COMMON_OPTIM_POWER_H_

#include <cstdint>

namespace syncgrads {

// By repeated squaring. Not std::pow, whose last bit depends on the C library
// and on the processor that it finds. The relative error is below
// 2 * exponent * 2^-53, which for a base below 1 is harmless: where the exponent
// is large the power is nothing beside the 1 that it is subtracted from.
constexpr double Power(double base, uint64_t exponent) {
  double power = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) power *= base;
    base *= base;
  }
  return power;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_OPTIM_POWER_H_
