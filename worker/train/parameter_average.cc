#include "worker/train/parameter_average.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/base/out_of_memory.h"

namespace syncgrads {
namespace {

// In a checkpoint: the average of a parameter that is the model's, and a parameter whose average
// is the model's.
constexpr absl::string_view kAverage = "average/";
constexpr absl::string_view kParameter = "parameter/";

SavedTensor* FindIn(std::vector<SavedTensor>& tensors, absl::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const SavedTensor& tensor) {
    return tensor.spec.name == name;
  });
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace

double DecayOf(double decay, uint64_t update) {
  const double n = static_cast<double>(update);
  return std::min(decay, (1 + n) / (10 + n));
}

template <typename T>
absl::StatusOr<std::unique_ptr<ParameterAverage<T>>> ParameterAverage<T>::Create(
    const v1::MovingAverage& spec, Device<T>& device, absl::Span<Parameter<T>* const> parameters) {
  auto average = absl::WrapUnique(new ParameterAverage(spec, device, parameters));
  SYNCGRADS_RETURN_IF_ERROR(average->Allocate());
  return average;
}

template <typename T>
ParameterAverage<T>::ParameterAverage(const v1::MovingAverage& spec, Device<T>& device,
                                      absl::Span<Parameter<T>* const> parameters)
    : decay_(spec.decay()),
      every_(std::max<uint64_t>(spec.every_steps(), 1)),
      is_model_(spec.model() == v1::MovingAverage::AVERAGE),
      device_(device),
      parameters_(parameters.begin(), parameters.end()),
      room_(device.memory()) {}

template <typename T>
absl::Status ParameterAverage<T>::Allocate() {
  DeviceMemory& memory = device_.memory();
  SYNCGRADS_RETURN_IF_ERROR(memory.status());
  int64_t largest = 0;
  for (const Parameter<T>* parameter : parameters_) {
    largest = std::max<int64_t>(largest, parameter->values.size());
    averages_.push_back(Parameter<T>::Vector(memory, absl::StrCat(kAverage, parameter->name),
                                             parameter->values.size(), /*trained=*/false));
    averages_.back().shape = parameter->shape;
    const absl::Status status = memory.status();
    if (IsOutOfMemory(status)) {
      return OutOfMemoryError(absl::StrCat("not enough memory for the moving average of \"",
                                           parameter->name, "\": ", status.message()));
    }
    SYNCGRADS_RETURN_IF_ERROR(status);
  }
  room_.Resize(1, largest);
  return memory.status();
}

template <typename T>
void ParameterAverage<T>::Begin() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    device_.memory().Copy(parameters_[i]->device_values(), parameters_[i]->bytes(),
                          averages_[i].device_values());
  }
  changed_ = true;
}

template <typename T>
void ParameterAverage<T>::Update(uint64_t step) {
  if (step % every_ != 0) return;
  const T weight = static_cast<T>(1 - DecayOf(decay_, step / every_));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    device_.UpdateMovingAverage(weight, parameters_[i]->values.size(),
                                parameters_[i]->device_values(), averages_[i].device_values());
  }
  changed_ = true;
}

template <typename T>
absl::Status ParameterAverage<T>::Exchange() {
  DeviceMemory& memory = device_.memory();
  // The device may still read or write the host's values.
  SYNCGRADS_RETURN_IF_ERROR(memory.Finish());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter<T>& parameter = *parameters_[i];
    Parameter<T>& average = averages_[i];
    memory.Copy(parameter.device_values(), parameter.bytes(), room_.data());
    memory.Copy(average.device_values(), parameter.bytes(), parameter.device_values());
    memory.Copy(room_.data(), parameter.bytes(), average.device_values());
    if (memory.is_host()) continue;
    std::swap_ranges(parameter.values.data(), parameter.values.data() + parameter.values.size(),
                     average.values.data());
  }
  return memory.Finish();
}

template <typename T>
absl::Status ParameterAverage<T>::Fetch() {
  if (!std::exchange(changed_, false)) return absl::OkStatus();
  for (Parameter<T>& average : averages_) SYNCGRADS_RETURN_IF_ERROR(average.Fetch());
  return absl::OkStatus();
}

template <typename T>
void ParameterAverage<T>::Upload() {
  for (Parameter<T>& average : averages_) average.Upload();
}

template <typename T>
std::vector<NamedTensor> ParameterAverage<T>::state() {
  std::vector<NamedTensor> state;
  for (Parameter<T>& average : averages_) state.push_back({average.spec(), average.values.data()});
  return state;
}

void UseAverages(absl::Span<const NamedTensor> averages, Snapshot& snapshot) {
  for (const NamedTensor& average : averages) {
    const std::string name(absl::StripPrefix(average.spec.name, kAverage));
    SavedTensor* const parameter = FindIn(snapshot.model, name);
    if (parameter == nullptr) continue;
    SavedTensor& moved = snapshot.training.emplace_back(*parameter);
    moved.spec.name = absl::StrCat(kParameter, name);
    parameter->bytes.assign(static_cast<const char*>(average.data), average.spec.bytes());
  }
}

void SeparateAverages(absl::Span<const NamedTensor> averages, Snapshot& snapshot) {
  for (SavedTensor& parameter : snapshot.training) {
    if (!absl::StartsWith(parameter.spec.name, kParameter)) continue;
    const std::string name(absl::StripPrefix(parameter.spec.name, kParameter));
    SavedTensor* const average = FindIn(snapshot.model, name);
    if (average == nullptr) continue;
    std::swap(average->bytes, parameter.bytes);
    parameter.spec.name = absl::StrCat(kAverage, name);
  }
  for (const NamedTensor& average : averages) {
    if (snapshot.FindNamed(average.spec.name) != nullptr) continue;
    const SavedTensor* const parameter =
        snapshot.FindNamed(absl::StripPrefix(average.spec.name, kAverage));
    if (parameter != nullptr) snapshot.training.push_back({average.spec, parameter->bytes});
  }
}

template class ParameterAverage<float>;
template class ParameterAverage<double>;

}  // namespace syncgrads
