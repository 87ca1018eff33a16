#include "worker/nn/parameter_arrays.h"

#include <vector>

namespace syncgrads {

template <typename T>
ParameterArrays<T>::ParameterArrays(DeviceMemory& memory,
                                    absl::Span<Parameter<T>* const> parameters)
    : memory_(memory) {
  std::vector<int64_t> offsets;
  int64_t size = 0;
  bool trained = false;
  for (const Parameter<T>* parameter : parameters) {
    offsets.push_back(size);
    size += AlignedSize<T>(parameter->values.size());
    trained = trained || parameter->gradient.size() != 0;
  }
  if (size == 0) return;
  if (!memory.is_host()) {
    device_values_ = DeviceArray<T>(memory, 1, size);
    if (trained) device_gradients_ = DeviceArray<T>(memory, 1, size);
    if (!memory.status().ok()) return;
    // The gaps between parameters are copied too.
    memory.SetZero(device_values_.data(), device_values_.bytes());
  }
  values_ = HostMatrix<T>(memory, 1, size);
  if (trained) gradients_ = HostMatrix<T>(memory, 1, size);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto at = [&](T* array) { return array == nullptr ? nullptr : array + offsets[i]; };
    parameters[i]->MoveTo(at(values_.data()), at(device_values_.data()), at(gradients_.data()),
                          at(device_gradients_.data()));
  }
}

template <typename T>
void ParameterArrays<T>::Upload() {
  if (!has_copy()) return;
  memory_.UploadPinned(values_.data(), device_values_.bytes(), device_values_.data());
}

template <typename T>
absl::Status ParameterArrays<T>::Fetch() {
  if (!has_copy()) return memory_.status();
  return memory_.Wait(
      memory_.QueueDownload(device_values_.data(), device_values_.bytes(), values_.data()));
}

template class ParameterArrays<float>;
template class ParameterArrays<double>;

}  // namespace syncgrads
