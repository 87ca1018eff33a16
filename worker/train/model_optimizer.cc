#include "worker/train/model_optimizer.h"

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "common/status_macros.h"
#include "worker/base/out_of_memory.h"

namespace syncgrads {

template <typename T>
absl::StatusOr<std::unique_ptr<ModelOptimizer<T>>> ModelOptimizer<T>::Create(
    const Optimizer& rule, Device<T>& device, absl::Span<Parameter<T>* const> parameters) {
  SYNCGRADS_RETURN_IF_ERROR(Validate(rule));
  auto optimizer = absl::WrapUnique(new ModelOptimizer(rule, device, parameters));
  SYNCGRADS_RETURN_IF_ERROR(optimizer->AllocateSlots());
  return optimizer;
}

template <typename T>
ModelOptimizer<T>::ModelOptimizer(const Optimizer& rule, Device<T>& device,
                                  absl::Span<Parameter<T>* const> parameters)
    : rule_(rule),
      current_(rule),
      device_(device),
      parameters_(parameters.begin(), parameters.end()),
      states_(parameters.size()) {}

template <typename T>
absl::Status ModelOptimizer<T>::AllocateSlots() {
  DeviceMemory& memory = this->memory();
  SYNCGRADS_RETURN_IF_ERROR(memory.status());
  const absl::Span<const absl::string_view> names = SlotNames(rule_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (const absl::string_view name : names) {
      const Parameter<T>& parameter = *parameters_[i];
      states_[i].slots.push_back(Parameter<T>::Vector(memory, std::string(name),
                                                      parameter.values.size(), /*trained=*/false));
      const absl::Status status = memory.status();
      if (IsOutOfMemory(status)) {
        return OutOfMemoryError(absl::StrCat("not enough memory for the optimizer's ", name,
                                             " of \"", parameter.name, "\": ", status.message()));
      }
      SYNCGRADS_RETURN_IF_ERROR(status);
      Parameter<T>& slot = states_[i].slots.back();
      memory.SetZero(slot.device_values(), slot.bytes());
    }
  }
  return memory.status();
}

template <typename T>
void ModelOptimizer<T>::SetRateFactor(double factor) {
  current_ = WithRateFactor(rule_, factor);
}

template <typename T>
absl::Status ModelOptimizer<T>::Apply(absl::Span<const size_t> parameters) {
  // A download in flight must not see the update. In training it has usually ended
  // already.
  SYNCGRADS_RETURN_IF_ERROR(device_.memory().Wait(fetch_));
  if (NeedsNorms(rule_)) {
    for (const size_t i : parameters) UpdateOnHost(i);
  } else {
    // Queues all uploads before all updates: an upload waits until all operations queued
    // before it have been computed.
    for (const size_t i : parameters) parameters_[i]->UploadGradient();
    for (const size_t i : parameters) UpdateOnDevice(i);
  }
  return device_.memory().status();
}

template <typename T>
void ModelOptimizer<T>::UpdateOnHost(size_t i) {
  Parameter<T>& parameter = *parameters_[i];
  State& state = states_[i];
  std::vector<std::byte*> slots;
  for (Parameter<T>& slot : state.slots) {
    slots.push_back(reinterpret_cast<std::byte*>(slot.values.data()));
  }
  UpdateTensor(current_, DTypeOf<T>::value, ++state.updates,
               reinterpret_cast<const std::byte*>(parameter.gradient.data()),
               static_cast<size_t>(parameter.values.size()),
               reinterpret_cast<std::byte*>(parameter.values.data()), slots);
  parameter.Upload();
}

template <typename T>
void ModelOptimizer<T>::UpdateOnDevice(size_t i) {
  Parameter<T>& parameter = *parameters_[i];
  State& state = states_[i];
  std::vector<T*> slots;
  for (Parameter<T>& slot : state.slots) slots.push_back(slot.device_values());
  device_.Update(current_, ++state.updates, parameter.values.size(), parameter.device_gradient(),
                 parameter.device_values(), slots.data());
  state.values_changed = true;
  state.slots_changed = true;
}

template <typename T>
void ModelOptimizer<T>::BeginFetchValues() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!std::exchange(states_[i].values_changed, false)) continue;
    fetch_ = parameters_[i]->QueueValues();
  }
}

template <typename T>
void ModelOptimizer<T>::BeginFetch() {
  BeginFetchValues();
  for (State& state : states_) {
    if (!std::exchange(state.slots_changed, false)) continue;
    for (Parameter<T>& slot : state.slots) fetch_ = slot.QueueValues();
  }
}

template <typename T>
absl::Status ModelOptimizer<T>::Fetch() {
  BeginFetch();
  return device_.memory().Wait(fetch_);
}

template <typename T>
absl::Status ModelOptimizer<T>::FetchValues() {
  BeginFetchValues();
  return device_.memory().Wait(fetch_);
}

template <typename T>
std::vector<Parameter<T>*> ModelOptimizer<T>::PartsOf(size_t i) {
  std::vector<Parameter<T>*> parts = {parameters_[i]};
  for (Parameter<T>& slot : states_[i].slots) parts.push_back(&slot);
  return parts;
}

template <typename T>
bool ModelOptimizer<T>::Keep(size_t i) {
  State& state = states_[i];
  const std::vector<Parameter<T>*> parts = PartsOf(i);
  try {
    while (state.room.size() < parts.size()) {
      DeviceMatrix<T> room(memory(), 1, parameters_[i]->values.size());
      if (room.data() == nullptr) {
        memory().ForgetExhaustion();
        return false;
      }
      state.room.push_back(std::move(room));
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    memory().Copy(ValuesThere(*parts[part]), parts[part]->bytes(), state.room[part].data());
  }
  kept_.push_back({i, state.updates});
  return true;
}

template <typename T>
void ModelOptimizer<T>::Undo() {
  for (const Kept& kept : kept_) {
    State& state = states_[kept.parameter];
    const std::vector<Parameter<T>*> parts = PartsOf(kept.parameter);
    for (size_t part = 0; part < parts.size(); ++part) {
      memory().Copy(state.room[part].data(), parts[part]->bytes(), ValuesThere(*parts[part]));
    }
    state.updates = kept.updates;
    if (NeedsNorms(rule_)) {
      parameters_[kept.parameter]->Upload();
    } else {
      state.values_changed = state.slots_changed = true;
    }
  }
  kept_.clear();
}

template <typename T>
void ModelOptimizer<T>::ForgetKept() {
  kept_.clear();
}

template <typename T>
void ModelOptimizer<T>::UploadSlots() {
  for (State& state : states_) {
    for (Parameter<T>& slot : state.slots) slot.Upload();
  }
}

template <typename T>
int ModelOptimizer<T>::slots() const {
  return SlotCount(rule_);
}

template class ModelOptimizer<float>;
template class ModelOptimizer<double>;

}  // namespace syncgrads
