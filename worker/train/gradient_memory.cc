#include "worker/train/gradient_memory.h"

#include <cstddef>

#include "absl/memory/memory.h"
#include "common/status_macros.h"

namespace syncgrads {

template <typename T>
absl::StatusOr<std::unique_ptr<GradientMemory>> GradientMemory::Create(
    Team& team, DeviceMemory& device, absl::Span<Parameter<T>* const> parameters) {
  size_t bytes = 0;
  for (const Parameter<T>* parameter : parameters) bytes += parameter->bytes();
  SYNCGRADS_ASSIGN_OR_RETURN(void* const memory, team.AllocateGradients(bytes));
  SYNCGRADS_RETURN_IF_ERROR(device.Pin(memory, bytes));
  T* place = static_cast<T*>(memory);
  for (Parameter<T>* parameter : parameters) {
    parameter->PlaceGradient(place);
    place += parameter->values.size();
  }
  return absl::WrapUnique(new GradientMemory(device, memory));
}

template absl::StatusOr<std::unique_ptr<GradientMemory>> GradientMemory::Create(
    Team&, DeviceMemory&, absl::Span<Parameter<float>* const>);
template absl::StatusOr<std::unique_ptr<GradientMemory>> GradientMemory::Create(
    Team&, DeviceMemory&, absl::Span<Parameter<double>* const>);

}  // namespace syncgrads
