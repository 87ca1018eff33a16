// Where a model's gradients lie on the host.

#ifndef SYNCGRADS_WORKER_TRAIN_GRADIENT_MEMORY_H_
#define SYNCGRADS_WORKER_TRAIN_GRADIENT_MEMORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/device_memory.h"
#include "worker/nn/parameter.h"
#include "worker/train/team.h"

namespace syncgrads {

// Memory that servers on this host read where it lies, and that the device copies to by
// itself. T is float or double.
//
// Not thread-safe.
template <typename T>
class GradientMemory {
 public:
  // Moves the gradients of `parameters` there, in their order and without gaps, so that a
  // chunk of several is one piece; they are zeros then. `team`, `device` and the object
  // outlive the parameters' use.
  //
  // Errors, after which the gradients are where they were:
  //   ResourceExhausted  there is not so much memory that can be shared, or pinned
  static absl::StatusOr<std::unique_ptr<GradientMemory>> Create(
      Team& team, DeviceMemory& device, absl::Span<Parameter<T>* const> parameters);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  // One more number behind them, which is zero at first.
  T* behind() const { return behind_; }

 private:
  GradientMemory(Team& team, DeviceMemory& device, T* memory, T* behind)
      : team_(team), device_(device), memory_(memory), behind_(behind) {}

  Team& team_;
  DeviceMemory& device_;
  T* const memory_;
  T* const behind_;
};

extern template class GradientMemory<float>;
extern template class GradientMemory<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_GRADIENT_MEMORY_H_
