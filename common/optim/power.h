// Computes base^exponent for the bias corrections of Adam.

#ifndef SYNCGRADS_COMMON_OPTIM_POWER_H_
#define SYNCGRADS_COMMON_OPTIM_POWER_H_

#include <cstdint>

namespace syncgrads {

// Computes the power by repeated squaring. std::pow is not used, because its last bit depends on
// the C library and on the processor. The relative error is below 2 * exponent * 2^-53. This is
// harmless for a base below 1: if the exponent is large, the power is negligible beside the 1 from
// which it is subtracted.
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
