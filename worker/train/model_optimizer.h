// Updates a model's parameters in place, on the device or on the host.

#ifndef SYNCGRADS_WORKER_TRAIN_MODEL_OPTIMIZER_H_
#define SYNCGRADS_WORKER_TRAIN_MODEL_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/optim/optimizer.h"
#include "common/update_rule.h"
#include "worker/nn/device.h"
#include "worker/nn/device_array.h"
#include "worker/nn/device_memory.h"
#include "worker/nn/parameter.h"

namespace syncgrads {

// An optimizer with its slots, for the parameters of a model. Each parameter has its own
// count of updates: a step in which it has no gradient does not count. The result is
// bit-identical wherever the update runs:
//
//   on the device   The host's values and slots are stale, or partly written, until they
//                   have been fetched.
//   on the host     Only a rule that needs norms of whole tensors. The device has the
//                   values when the queued uploads have been done; fetching does nothing.
//
// A parameter is identified by its number in the model. Unless a comment lists others,
// the errors of a method are those of DeviceMemory::Wait.
//
// The Trainer owns one, and its thread calls it. Not thread-safe.
template <typename T>
class ModelOptimizer {
 public:
  // Creates an optimizer whose slots are zeros. `factors` has the factors of each parameter, or is
  // empty if all are 1. `device` and `parameters` outlive it.
  //
  // Errors:
  //   InvalidArgument    a hyperparameter is out of its range
  //   ResourceExhausted  the device has no room for the slots; names the slot
  static absl::StatusOr<std::unique_ptr<ModelOptimizer>> Create(
      const Optimizer& rule, Device<T>& device, absl::Span<Parameter<T>* const> parameters,
      absl::Span<const TensorFactors> factors = {});

  // Multiplies the learning rates of later updates by `factor`, which is finite and not negative.
  void SetRateFactor(double factor) { rate_factor_ = factor; }

  // Updates `parameters` with the gradients on the host. These must not change before
  // DeviceMemory::Finish, or a download that is queued later, has ended. What else is queued must
  // not use their copies on the device. After an error, values and slots are unspecified.
  absl::Status Apply(absl::Span<const size_t> parameters);

  // Whether gradients may lie elsewhere on the host: updates are made element by element. If so,
  // SetGradient tells where the gradient of the parameter's next update lies: in pieces, which have
  // as many bytes as the parameter and consist of whole aligned elements. If uploads_gradients(),
  // they are in pinned memory.
  bool takes_pieces() const { return !needs_norms(); }
  void SetGradient(size_t parameter, std::vector<absl::Span<const std::byte>> pieces) {
    states_[parameter].gradient = std::move(pieces);
  }

  // Whether Apply copies gradients to the device. If so, UploadGradient queues the copy of one, in
  // parallel with the updates and what is queued before them, and the next Apply does not. It must
  // not change in between, unless ForgetGradient is called.
  bool uploads_gradients() const { return !device_.memory().is_host() && !needs_norms(); }
  void UploadGradient(size_t parameter);
  bool is_uploaded(size_t parameter) const { return states_[parameter].uploaded; }
  // Takes back SetGradient and UploadGradient.
  void ForgetGradient(size_t parameter) {
    states_[parameter].gradient.clear();
    states_[parameter].uploaded = false;
  }

  // Fetch waits until the host has the device's values and slots.
  absl::Status Fetch();
  // FetchValues waits until the host has the device's values; the slots may be stale.
  absl::Status FetchValues();
  // Queues the copies that Fetch waits for. Until Fetch or FetchValues has returned, the host
  // must neither read nor write what is being copied.
  void BeginFetch();

  // Queues a copy of the parameter's values and slots, which Undo can restore until
  // ForgetKept. Returns false if there is no memory for the copy.
  bool Keep(size_t parameter);
  // Queues the restoration of everything that Keep has copied.
  void Undo();
  // Discards everything that Keep has copied.
  void ForgetKept();

  // Queues the upload of the host's slots to the device; call it after writing them. They
  // must not change before DeviceMemory::Finish, or a later download, has ended.
  // Parameter::Upload uploads values.
  void UploadSlots();

  // The number of slots of the rule (SlotCount).
  int slots() const;
  // The slot on the host; it has as many elements as the parameter.
  T* slot(size_t parameter, int slot) {
    return slots_[slot].values.data() + states_[parameter].offset;
  }
  uint64_t updates(size_t parameter) const { return states_[parameter].updates; }
  void set_updates(size_t parameter, uint64_t updates) { states_[parameter].updates = updates; }

 private:
  struct State {
    // Where the parameter's part of each slot begins, in elements.
    int64_t offset = 0;
    uint64_t updates = 0;
    // The index of its rule in rules_.
    size_t rule = 0;
    // Whether the device's values or slots have changed since the last fetch.
    bool values_changed = false;
    bool slots_changed = false;
    // Where the gradient of the next update lies, if not where the parameter has it.
    std::vector<absl::Span<const std::byte>> gradient;
    // Whether UploadGradient has queued the gradient of the next update.
    bool uploaded = false;
  };
  // A parameter that has been copied by Keep, and its count of updates at that time.
  struct Kept {
    size_t parameter;
    uint64_t updates;
  };
  // Parameters that follow each other in every array, and have had the same number of updates: one
  // operation can do what is to be done with each of them.
  struct Run {
    size_t first;
    size_t parameters;
    int64_t elements;
  };

  ModelOptimizer(const Optimizer& rule, Device<T>& device,
                 absl::Span<Parameter<T>* const> parameters);
  // Sets the rule of each parameter.
  void SetRules(absl::Span<const TensorFactors> factors);
  absl::Status AllocateSlots();
  bool needs_norms() const { return NeedsNorms(rules_[0]); }
  // Returns rules_[rule] with the current learning rate.
  Optimizer Current(size_t rule) const;
  // The memory in which updates are made: the device's or the host's.
  DeviceMemory& memory() { return needs_norms() ? host_memory_ : device_.memory(); }
  // The addresses, in memory(), of a parameter's values and of its part of each slot.
  T* ValuesOf(size_t parameter);
  std::vector<T*> SlotsOf(size_t parameter);
  // Divides `parameters` into runs, in their order.
  std::vector<Run> RunsOf(absl::Span<const size_t> parameters) const;
  bool IsFollowedBy(size_t parameter, size_t next) const;
  // Returns the numbers of the parameters with this mark, and removes the mark.
  std::vector<size_t> TakeChanged(bool State::*mark);
  // Returns the pieces in which a parameter's gradient lies on the host.
  std::vector<absl::Span<const std::byte>> GradientOf(size_t parameter) const;
  // Queues the copies of gradients to the device: one copy for what is adjacent on both sides.
  void QueueGradients(absl::Span<const size_t> parameters);
  // Queues the copies of the gradients that UploadGradient has not queued.
  void UploadRest(absl::Span<const size_t> parameters);
  // Makes the updates whose gradients lie elsewhere on the host, and returns the other parameters.
  std::vector<size_t> UpdateFromPieces(absl::Span<const size_t> parameters);
  // Queues the copies that FetchValues waits for.
  void BeginFetchValues();
  void UpdateOnHost(size_t parameter);
  void UpdateOnDevice(absl::Span<const Run> runs);

  // The job's rule, then one for each further pair of factors that parameters have.
  std::vector<Optimizer> rules_;
  double rate_factor_ = 1;
  Device<T>& device_;
  const std::vector<Parameter<T>*> parameters_;
  // Owns the slots of a rule that is updated on the host.
  HostMemory host_memory_;
  // One array for each slot, with the parts of all parameters in their order.
  std::vector<Parameter<T>> slots_;
  std::vector<State> states_;  // by parameter
  // Memory for the copies of Keep: the values of all parameters, then each slot.
  std::vector<DeviceArray<T>> room_;
  // The parameters that Keep has copied.
  std::vector<Kept> kept_;
  // The last download that has been queued.
  DeviceMemory::Download fetch_{};
};

extern template class ModelOptimizer<float>;
extern template class ModelOptimizer<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_MODEL_OPTIMIZER_H_
