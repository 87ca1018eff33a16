// The arrays in which a model keeps its parameters, or its layer states.

#ifndef SYNCGRADS_WORKER_NN_PARAMETER_ARRAYS_H_
#define SYNCGRADS_WORKER_NN_PARAMETER_ARRAYS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/nn/device_array.h"
#include "worker/nn/device_memory.h"
#include "worker/nn/host_matrix.h"
#include "worker/nn/parameter.h"

namespace syncgrads {

// One array of all values and one of all gradients, each on the host and on the device, in the
// order of the model. The parameters become views of them, so that all values are copied at once.
// Each parameter begins at a multiple of 64 bytes, as memory that was allocated for it alone would.
//
// Not thread-safe.
template <typename T>
class ParameterArrays {
 public:
  // Moves `parameters` into new arrays. `memory` and `parameters` outlive the object, and nobody
  // uses the parameters after it. If the device has no room, the parameters stay where they are,
  // and DeviceMemory::status() reports it.
  ParameterArrays(DeviceMemory& memory, absl::Span<Parameter<T>* const> parameters);

  // Queues a copy of all values to the device; see Parameter::Upload.
  void Upload();
  // Copies all values of the device to the host and waits for it. Errors: those of
  // DeviceMemory::Wait.
  absl::Status Fetch();

 private:
  // Whether the arrays exist, and the device's are not the host's.
  bool has_copy() const { return values_.size() != 0 && device_values_.size() != 0; }

  DeviceMemory& memory_;
  // Empty if there are no parameters, or if the device had no room.
  HostMatrix<T> values_, gradients_;
  // Empty if the device's memory is the host's.
  DeviceArray<T> device_values_, device_gradients_;
};

extern template class ParameterArrays<float>;
extern template class ParameterArrays<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_PARAMETER_ARRAYS_H_
