// The compute devices of this machine other than the CPU.

#ifndef SYNCGRADS_WORKER_NN_ACCELERATORS_H_
#define SYNCGRADS_WORKER_NN_ACCELERATORS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/nn/device.h"

namespace syncgrads {

// The precision of float32 jobs (mixed precision). Parameters, their gradients and sums are always
// float32. Jobs of float64 are always computed in float64.
enum class MatrixPrecision {
  kF32,
  kTf32,  // factors of matrix products have 10 bits of fraction, 8 of exponent
  kBf16,  // activations, gradients by them, and factors have 7 bits of fraction, 8 of exponent
};

// Finds the accelerators of this machine and creates devices on them. Thread-safe.
class Accelerators {
 public:
  virtual ~Accelerators() = default;

  // The number of accelerators, at least 1.
  //
  // Errors:
  //   Unimplemented  this program was built without support for accelerators, or this machine
  //                  has none; says what to do
  virtual absl::StatusOr<int> Count() const = 0;

  // The name of accelerator `index` for people, for example "NVIDIA H200".
  //
  // Errors: those of MakeFloat, except for ResourceExhausted
  virtual absl::StatusOr<std::string> Name(int index) const = 0;

  // A clause for people about optional libraries that devices use, or that are missing, for example
  // "convolutions by cuDNN 9.19.0". Empty if there is nothing to report.
  virtual std::string Libraries() const { return ""; }

  // Create a device on accelerator `index`, counted from 0.
  //
  // Errors:
  //   Unimplemented      as for Count(), or a library that the device needs is missing
  //   InvalidArgument    `index` is out of range; names `index` and the number of accelerators
  //   ResourceExhausted  the device's memory is full
  //   Internal           the device does not work
  virtual absl::StatusOr<std::unique_ptr<Device<float>>> MakeFloat(
      int index, MatrixPrecision precision) const = 0;
  virtual absl::StatusOr<std::unique_ptr<Device<double>>> MakeDouble(int index) const = 0;
};

// The accelerators of a program without support for any: every method returns Unimplemented.
const Accelerators& NoAccelerators();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_ACCELERATORS_H_
