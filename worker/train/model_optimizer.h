// A model's parameters, updated where they are.

#ifndef SYNCGRADS_WORKER_TRAIN_MODEL_OPTIMIZER_H_
#define SYNCGRADS_WORKER_TRAIN_MODEL_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/optim/optimizer.h"
#include "common/update_rule.h"
#include "worker/nn/device.h"
#include "worker/nn/device_matrix.h"
#include "worker/nn/device_memory.h"
#include "worker/nn/parameter.h"

namespace syncgrads {

// An optimizer with its slots, for the parameters of a model on a device. Each
// parameter has its own count of updates: a step in which it had no gradient is none
// of its. The bits are the same wherever it works:
//
//   on the device   the host has what an update has made when it has been fetched, or
//                   reads something older, or half of it
//   on the host     a rule that needs norms of whole tensors; the device has the values
//                   when what is queued has been done, and fetching has nothing to do
//
// Parameters are named by their numbers in the model. Errors that no comment lists are
// DeviceMemory::Wait's.
//
// Not thread-safe.
template <typename T>
class ModelOptimizer {
 public:
  // With slots of zeros. `device` and `parameters` outlive the optimizer.
  //
  // Errors:
  //   InvalidArgument    a hyperparameter is out of its range
  //   ResourceExhausted  the device has no room for the slots; names the parameter
  static absl::StatusOr<std::unique_ptr<ModelOptimizer>> Create(
      const Optimizer& rule, Device<T>& device, absl::Span<Parameter<T>* const> parameters);

  // From now on the learning rate is the rule's times `factor`, which is finite and not
  // negative.
  void SetRateFactor(double factor);

  // Updates these parameters by the gradients that the host has, which must not change
  // before DeviceMemory::Finish, or a download that is queued later, has ended. An error
  // leaves values and slots unspecified.
  absl::Status Apply(absl::Span<const size_t> parameters);

  // Return when values and slots of the host, or its values, are those of the device.
  absl::Status Fetch();
  absl::Status FetchValues();
  // The same, begun: what is on its way is neither to be read nor to be written before
  // it has been fetched.
  void BeginFetch();
  void BeginFetchValues();

  // Keeps what this parameter and its slots are until ForgetKept, for Undo; queued. False:
  // there is no room for that.
  bool Keep(size_t parameter);
  // Puts back what is kept; queued.
  void Undo();
  void ForgetKept();

  // Gives the device the slots of the host, once these have been written; queued, see
  // DeviceMemory::UploadPinned. (The values: Parameter::Upload.)
  void UploadSlots();

  // SlotCount of the rule.
  int slots() const;
  // Of the host: as many numbers as the parameter has.
  T* slot(size_t parameter, int slot) { return states_[parameter].slots[slot].values.data(); }
  uint64_t updates(size_t parameter) const { return states_[parameter].updates; }
  void set_updates(size_t parameter, uint64_t updates) { states_[parameter].updates = updates; }

 private:
  // What a parameter was: its values, and then its slots.
  struct Kept {
    size_t parameter;
    uint64_t updates;
  };
  struct State {
    std::vector<Parameter<T>> slots;
    std::vector<DeviceMatrix<T>> room;  // for what is kept
    uint64_t updates = 0;
    // Since they were last fetched.
    bool values_changed = false;
    bool slots_changed = false;
  };

  ModelOptimizer(const Optimizer& rule, Device<T>& device,
                 absl::Span<Parameter<T>* const> parameters);
  absl::Status AllocateSlots();
  // Where updates are made.
  DeviceMemory& memory() { return NeedsNorms(rule_) ? host_memory_ : device_.memory(); }
  T* ValuesThere(Parameter<T>& parameter) {
    return NeedsNorms(rule_) ? parameter.values.data() : parameter.device_values();
  }
  // The values and slots of a parameter.
  std::vector<Parameter<T>*> PartsOf(size_t parameter);
  void UpdateOnHost(size_t parameter);
  void UpdateOnDevice(size_t parameter);

  const Optimizer rule_;
  Optimizer current_;  // with the learning rate of now
  Device<T>& device_;
  const std::vector<Parameter<T>*> parameters_;
  // Of slots that no device needs.
  HostMemory host_memory_;
  std::vector<State> states_;  // by parameter
  std::vector<Kept> kept_;
  // The last of what has been on its way to the host.
  DeviceMemory::Download fetch_{};
};

extern template class ModelOptimizer<float>;
extern template class ModelOptimizer<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_MODEL_OPTIMIZER_H_
