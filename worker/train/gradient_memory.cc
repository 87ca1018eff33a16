#include "worker/train/gradient_memory.h"

#include <cstddef>

#include "absl/memory/memory.h"
#include "common/status_macros.h"

namespace syncgrads {

template <typename T>
absl::StatusOr<std::unique_ptr<GradientMemory<T>>> GradientMemory<T>::Create(
    Team& team, DeviceMemory& device, absl::Span<Parameter<T>* const> parameters) {
  size_t bytes = sizeof(T);
  for (const Parameter<T>* parameter : parameters) bytes += parameter->bytes();
  SYNCGRADS_ASSIGN_OR_RETURN(void* const memory, team.AllocateGradients(bytes));
  if (const absl::Status pinned = device.Pin(memory, bytes); !pinned.ok()) {
    team.ReleaseGradients(memory);
    return pinned;
  }
  T* place = static_cast<T*>(memory);
  for (Parameter<T>* parameter : parameters) {
    parameter->PlaceGradient(place);
    place += parameter->values.size();
  }
  return absl::WrapUnique(new GradientMemory(team, device, static_cast<T*>(memory), place));
}

template <typename T>
GradientMemory<T>::~GradientMemory() {
  device_.Unpin(memory_);
  team_.ReleaseGradients(memory_);
}

template class GradientMemory<float>;
template class GradientMemory<double>;

}  // namespace syncgrads
