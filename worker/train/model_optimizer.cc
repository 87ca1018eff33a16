#include "worker/train/model_optimizer.h"

#include <algorithm>
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
    const Optimizer& rule, Device<T>& device, absl::Span<Parameter<T>* const> parameters,
    absl::Span<const TensorFactors> factors) {
  SYNCGRADS_RETURN_IF_ERROR(Validate(rule));
  auto optimizer = absl::WrapUnique(new ModelOptimizer(rule, device, parameters));
  optimizer->SetRules(factors);
  for (const Optimizer& one : optimizer->rules_) SYNCGRADS_RETURN_IF_ERROR(Validate(one));
  SYNCGRADS_RETURN_IF_ERROR(optimizer->AllocateSlots());
  return optimizer;
}

template <typename T>
ModelOptimizer<T>::ModelOptimizer(const Optimizer& rule, Device<T>& device,
                                  absl::Span<Parameter<T>* const> parameters)
    : rules_({rule}),
      device_(device),
      parameters_(parameters.begin(), parameters.end()),
      states_(parameters.size()) {}

template <typename T>
void ModelOptimizer<T>::SetRules(absl::Span<const TensorFactors> factors) {
  std::vector<TensorFactors> distinct = {TensorFactors()};
  for (size_t i = 0; i < factors.size(); ++i) {
    const auto found = std::find(distinct.begin(), distinct.end(), factors[i]);
    states_[i].rule = static_cast<size_t>(found - distinct.begin());
    if (found != distinct.end()) continue;
    distinct.push_back(factors[i]);
    rules_.push_back(WithFactors(rules_[0], factors[i]));
  }
}

template <typename T>
absl::Status ModelOptimizer<T>::AllocateSlots() {
  DeviceMemory& memory = this->memory();
  SYNCGRADS_RETURN_IF_ERROR(memory.status());
  int64_t elements = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    states_[i].offset = elements;
    elements += AlignedSize<T>(parameters_[i]->values.size());
  }
  for (const absl::string_view name : SlotNames(rules_[0])) {
    slots_.push_back(Parameter<T>::Vector(memory, std::string(name), elements, /*trained=*/false));
    const absl::Status status = memory.status();
    if (IsOutOfMemory(status)) {
      return OutOfMemoryError(absl::StrCat("not enough memory for the optimizer's ", name, " of ",
                                           parameters_.size(), " parameters: ", status.message()));
    }
    SYNCGRADS_RETURN_IF_ERROR(status);
    memory.SetZero(slots_.back().device_values(), slots_.back().bytes());
  }
  return memory.status();
}

template <typename T>
Optimizer ModelOptimizer<T>::Current(size_t rule) const {
  // The same products as ScheduledOptimizer::After, so that the servers have the same bits.
  return WithRateFactor(rules_[rule], rate_factor_);
}

template <typename T>
T* ModelOptimizer<T>::ValuesOf(size_t i) {
  return needs_norms() ? parameters_[i]->values.data() : parameters_[i]->device_values();
}

template <typename T>
std::vector<T*> ModelOptimizer<T>::SlotsOf(size_t i) {
  std::vector<T*> slots;
  for (Parameter<T>& slot : slots_) slots.push_back(slot.device_values() + states_[i].offset);
  return slots;
}

template <typename T>
bool ModelOptimizer<T>::IsFollowedBy(size_t i, size_t next) const {
  Parameter<T>& a = *parameters_[i];
  Parameter<T>& b = *parameters_[next];
  const int64_t size = a.values.size();
  return next == i + 1 && states_[i].updates == states_[next].updates &&
         states_[next].offset == states_[i].offset + size &&
         b.values.data() == a.values.data() + size &&
         b.device_values() == a.device_values() + size &&
         b.device_gradient() == a.device_gradient() + size;
}

template <typename T>
std::vector<typename ModelOptimizer<T>::Run> ModelOptimizer<T>::RunsOf(
    absl::Span<const size_t> parameters) const {
  std::vector<Run> runs;
  for (size_t n = 0; n < parameters.size(); ++n) {
    const size_t i = parameters[n];
    if (n == 0 || !IsFollowedBy(parameters[n - 1], i)) runs.push_back({i, 0, 0});
    ++runs.back().parameters;
    runs.back().elements += parameters_[i]->values.size();
  }
  return runs;
}

template <typename T>
absl::Status ModelOptimizer<T>::Apply(absl::Span<const size_t> parameters) {
  // A download in flight must not see the update. In training it has usually ended
  // already.
  SYNCGRADS_RETURN_IF_ERROR(device_.memory().Wait(fetch_));
  if (needs_norms()) {
    for (const size_t i : parameters) UpdateOnHost(i);
    return device_.memory().status();
  }
  if (uploads_gradients()) {
    UploadRest(parameters);
    UpdateOnDevice(RunsOf(parameters));
  } else {
    UpdateOnDevice(RunsOf(UpdateFromPieces(parameters)));
  }
  for (const size_t i : parameters) ForgetGradient(i);
  device_.memory().SetMark();
  return device_.memory().status();
}

template <typename T>
std::vector<absl::Span<const std::byte>> ModelOptimizer<T>::GradientOf(size_t i) const {
  if (!states_[i].gradient.empty()) return states_[i].gradient;
  const Parameter<T>& parameter = *parameters_[i];
  return {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(parameter.gradient.data()),
                              parameter.bytes())};
}

// The uploads run beside what is queued, for example the forward pass of the layers before, except
// for the last update, which may still read a gradient.
template <typename T>
void ModelOptimizer<T>::QueueGradients(absl::Span<const size_t> parameters) {
  absl::Span<const std::byte> from;
  std::byte* to = nullptr;
  const auto queue = [&] { device_.memory().UploadPinnedAfterMark(from.data(), from.size(), to); };
  for (const size_t i : parameters) {
    auto* place = reinterpret_cast<std::byte*>(parameters_[i]->device_gradient());
    for (const absl::Span<const std::byte> piece : GradientOf(i)) {
      if (piece.data() == from.data() + from.size() && place == to + from.size()) {
        from = absl::MakeConstSpan(from.data(), from.size() + piece.size());
      } else {
        queue();
        from = piece;
        to = place;
      }
      place += piece.size();
    }
  }
  queue();
}

template <typename T>
void ModelOptimizer<T>::UploadRest(absl::Span<const size_t> parameters) {
  std::vector<size_t> rest;
  for (const size_t i : parameters) {
    if (!states_[i].uploaded) rest.push_back(i);
  }
  QueueGradients(rest);
}

template <typename T>
void ModelOptimizer<T>::UploadGradient(size_t i) {
  QueueGradients({i});
  states_[i].uploaded = device_.memory().status().ok();
}

template <typename T>
std::vector<size_t> ModelOptimizer<T>::UpdateFromPieces(absl::Span<const size_t> parameters) {
  std::vector<size_t> others;
  for (const size_t i : parameters) {
    if (states_[i].gradient.empty()) {
      others.push_back(i);
      continue;
    }
    const uint64_t step = ++states_[i].updates;
    T* values = ValuesOf(i);
    std::vector<T*> slots = SlotsOf(i);
    std::vector<ArrayUpdate<T>> updates;
    for (const absl::Span<const std::byte> piece : states_[i].gradient) {
      const int64_t count = static_cast<int64_t>(piece.size() / sizeof(T));
      updates.push_back({step, count, reinterpret_cast<const T*>(piece.data()), values});
      std::copy(slots.begin(), slots.end(), updates.back().slots);
      values += count;
      for (T*& slot : slots) slot += count;
    }
    device_.Update(Current(states_[i].rule), updates);
  }
  return others;
}

template <typename T>
void ModelOptimizer<T>::UpdateOnHost(size_t i) {
  Parameter<T>& parameter = *parameters_[i];
  std::vector<std::byte*> slots;
  for (T* const slot : SlotsOf(i)) slots.push_back(reinterpret_cast<std::byte*>(slot));
  UpdateTensor(Current(states_[i].rule), DTypeOf<T>::value, ++states_[i].updates,
               reinterpret_cast<const std::byte*>(parameter.gradient.data()),
               static_cast<size_t>(parameter.values.size()),
               reinterpret_cast<std::byte*>(parameter.values.data()), slots);
  parameter.Upload();
}

template <typename T>
void ModelOptimizer<T>::UpdateOnDevice(absl::Span<const Run> runs) {
  std::vector<std::vector<ArrayUpdate<T>>> updates(rules_.size());  // by rule
  for (const Run& run : runs) {
    for (size_t i = run.first; i < run.first + run.parameters; ++i) {
      std::vector<ArrayUpdate<T>>& of_rule = updates[states_[i].rule];
      if (i == run.first || states_[i].rule != states_[i - 1].rule) {
        of_rule.push_back(
            {states_[i].updates + 1, 0, parameters_[i]->device_gradient(), ValuesOf(i)});
        const std::vector<T*> slots = SlotsOf(i);
        std::copy(slots.begin(), slots.end(), of_rule.back().slots);
      }
      of_rule.back().count += parameters_[i]->values.size();
      ++states_[i].updates;
      states_[i].values_changed = true;
      states_[i].slots_changed = true;
    }
  }
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    if (!updates[rule].empty()) device_.Update(Current(rule), updates[rule]);
  }
}

template <typename T>
std::vector<size_t> ModelOptimizer<T>::TakeChanged(bool State::*mark) {
  std::vector<size_t> changed;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (std::exchange(states_[i].*mark, false)) changed.push_back(i);
  }
  return changed;
}

template <typename T>
void ModelOptimizer<T>::BeginFetchValues() {
  for (const Run& run : RunsOf(TakeChanged(&State::values_changed))) {
    fetch_ = memory().QueueDownload(ValuesOf(run.first), run.elements * sizeof(T),
                                    parameters_[run.first]->values.data());
  }
}

template <typename T>
void ModelOptimizer<T>::BeginFetch() {
  BeginFetchValues();
  for (const Run& run : RunsOf(TakeChanged(&State::slots_changed))) {
    const int64_t offset = states_[run.first].offset;
    for (Parameter<T>& slot : slots_) {
      fetch_ = memory().QueueDownload(slot.device_values() + offset, run.elements * sizeof(T),
                                      slot.values.data() + offset);
    }
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
bool ModelOptimizer<T>::Keep(size_t i) {
  const int64_t elements = states_.back().offset + parameters_.back()->values.size();
  try {
    while (room_.size() < 1 + slots_.size()) {
      DeviceArray<T> room(memory(), 1, elements);
      if (room.data() == nullptr) {
        memory().ForgetExhaustion();
        return false;
      }
      room_.push_back(std::move(room));
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  const int64_t offset = states_[i].offset;
  const size_t bytes = parameters_[i]->bytes();
  const std::vector<T*> slots = SlotsOf(i);
  memory().Copy(ValuesOf(i), bytes, room_[0].data() + offset);
  for (size_t s = 0; s < slots.size(); ++s) {
    memory().Copy(slots[s], bytes, room_[1 + s].data() + offset);
  }
  kept_.push_back({i, states_[i].updates});
  return true;
}

template <typename T>
void ModelOptimizer<T>::Undo() {
  for (const Kept& kept : kept_) {
    const size_t i = kept.parameter;
    State& state = states_[i];
    const size_t bytes = parameters_[i]->bytes();
    const std::vector<T*> slots = SlotsOf(i);
    memory().Copy(room_[0].data() + state.offset, bytes, ValuesOf(i));
    for (size_t s = 0; s < slots.size(); ++s) {
      memory().Copy(room_[1 + s].data() + state.offset, bytes, slots[s]);
    }
    state.updates = kept.updates;
    if (needs_norms()) {
      parameters_[i]->Upload();
    } else {
      state.values_changed = state.slots_changed = true;
    }
  }
  kept_.clear();
  for (size_t i = 0; i < states_.size(); ++i) ForgetGradient(i);
}

template <typename T>
void ModelOptimizer<T>::ForgetKept() {
  kept_.clear();
}

template <typename T>
void ModelOptimizer<T>::UploadSlots() {
  for (Parameter<T>& slot : slots_) slot.Upload();
}

template <typename T>
int ModelOptimizer<T>::slots() const {
  return SlotCount(rules_[0]);
}

template class ModelOptimizer<float>;
template class ModelOptimizer<double>;

}  // namespace syncgrads
