// Devices that a machine has besides its processor, as a program finds them.

#ifndef SYNCGRADS_WORKER_NN_ACCELERATORS_H_
#define SYNCGRADS_WORKER_NN_ACCELERATORS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/nn/device.h"

namespace syncgrads {

// What the factors of a matrix product of f32 are rounded to; sums, and all else,
// stay f32. Products of f64 are f64.
enum class MatrixPrecision {
  kF32,
  kTf32,  // 10 bits of fraction, 8 of exponent
  kBf16,  // 7 bits of fraction, 8 of exponent
};

// Thread-safe.
class Accelerators {
 public:
  virtual ~Accelerators() = default;

  // At least 1. Unimplemented if this program cannot use any, or this machine has
  // none; says what to do.
  virtual absl::StatusOr<int> Count() const = 0;

  // Errors:
  //   Unimplemented    as Count
  //   InvalidArgument  there are not so many; names `index` and how many
  //   Internal         the device does not work
  virtual absl::StatusOr<std::unique_ptr<Device<float>>> MakeFloat(
      int index, MatrixPrecision precision) const = 0;
  virtual absl::StatusOr<std::unique_ptr<Device<double>>> MakeDouble(int index) const = 0;
};

// Those of a program that has none.
const Accelerators& NoAccelerators();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_ACCELERATORS_H_
