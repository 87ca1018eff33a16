// Memory on the host for a model's gradients.

#ifndef SYNCGRADS_WORKER_TRAIN_GRADIENT_MEMORY_H_
#define SYNCGRADS_WORKER_TRAIN_GRADIENT_MEMORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/device_memory.h"
#include "worker/nn/parameter.h"
#include "worker/team/team.h"

namespace syncgrads {

// Memory that is shared with servers on this host, which read gradients in place, and
// that is pinned, so that the device copies to it directly. T is float or double. The
// Trainer owns it. Not thread-safe.
template <typename T>
class GradientMemory {
 public:
  // Moves the gradients of `parameters` into new memory, in their order and without gaps,
  // so that a chunk of several gradients is one piece. They become zeros. `team`,
  // `device` and the object must outlive every use of the gradients.
  //
  // Errors, after which the gradients are where they were:
  //   ResourceExhausted  there is not enough memory that can be shared, or pinned
  //   others             the errors of Team::AllocateGradients
  static absl::StatusOr<std::unique_ptr<GradientMemory>> Create(
      Team& team, DeviceMemory& device, absl::Span<Parameter<T>* const> parameters);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  // One more number, after the gradients; zero at first.
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
