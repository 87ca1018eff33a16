// The group of the model's tensors on the servers.

#ifndef SYNCGRADS_WORKER_TRAINER_TRAINING_GROUP_H_
#define SYNCGRADS_WORKER_TRAINER_TRAINING_GROUP_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

// Pushes the gradients of a replica, and receives results: the parameters, if the servers have
// them, otherwise the averaged gradients. Parameters are identified by their numbers in the model.
//
// Jobs with checkpoints only: the group has one more tensor, a single zero, the *due tensor*. A
// worker that finds a checkpoint due contributes to it; otherwise it skips it. All workers receive
// the number of its contributors with the step's results.
//
// Not thread-safe.
class TrainingGroup {
 public:
  // Registers the group. A collective. `run` and `replica` outlive the object. Errors: those of
  // Team::Register, or of CompressionOf.
  static absl::StatusOr<std::unique_ptr<TrainingGroup>> Register(TrainingRun& run,
                                                                 Replica& replica);

  // The group, for what this class has no method for.
  Group& group() { return group_; }
  TensorId tensor(size_t parameter) const { return tensors_[parameter]; }
  const std::optional<TensorId>& due_tensor() const { return due_tensor_; }
  // Whether the group has a codec.
  bool compresses() const { return compresses_; }

  // From now on, the results of parameters stay where they arrive: see Group::InPlace and Result.
  // If the replica copies gradients to a device, this is so for memory of servers on this host;
  // other results replace the gradients, because these are in pinned memory.
  void LeaveResultsInPlace() {
    in_place_ = true;
    replica_.UseResultsOf(group_);
  }
  bool leaves_results_in_place() const { return in_place_; }
  // Returns the pieces of a parameter's result, which are valid until it is pushed or skipped
  // again. Errors: those of Group::InPlaceResult.
  absl::StatusOr<std::vector<absl::Span<const std::byte>>> Result(size_t parameter) const {
    return group_.InPlaceResult(tensors_[parameter]);
  }

  // Begins a contribution: no parameter has been pushed.
  void Begin() { pushed_.assign(tensors_.size(), false); }
  // Pushes the gradient of a parameter, which is on the host.
  absl::Status Push(size_t parameter);
  absl::Status PushAll();
  // Skips the parameters that have not been pushed since Begin.
  absl::Status SkipRest();
  // Contributes nothing to the step, and requests its results. Waits for the device.
  absl::Status SkipAll();
  // Contributes to the due tensor, or skips it.
  absl::Status OfferCheckpoint(bool is_due);

  // Waits for the result of a parameter.
  absl::StatusOr<Contributors> Wait(size_t parameter);
  // Returns a parameter that has a result from at least one worker. Does not wait: nullopt if there
  // is none that it has not returned in this step. If a result has an error, Wait or WaitStep
  // returns it: this worker's other gradients are still to be pushed.
  absl::StatusOr<std::optional<size_t>> NextArrived();
  // Waits for the results of the step, and notes in the guard what the servers have left out of
  // this worker's contribution; `left_out`, unless null, is set to whether there was anything.
  absl::StatusOr<std::vector<Contributors>> WaitStep(absl::Duration timeout,
                                                     bool* left_out = nullptr);
  // Declares that this worker has no more rows. Then calls `follow`, which makes a step without a
  // contribution, until all workers have ended (OutOfRange).
  absl::Status EndAndFollow(absl::FunctionRef<absl::Status()> follow);

  // Returns a pointer for each tensor of the group, in the order of registration: the values of the
  // parameters.
  std::vector<void*> Values() const;

 private:
  TrainingGroup(TrainingRun& run, Replica& replica, Group& group, bool compresses);

  // Returns the error of a result that NextArrived has seen, once.
  absl::Status TakeFailure() { return std::exchange(failed_, absl::OkStatus()); }
  Group::InPlace InPlaceOf(size_t parameter) const {
    return {replica_.uploads_gradients() ? ResultOf(parameter) : nullptr};
  }
  // Polls for the result of a parameter, for a short time.
  void PollFor(size_t parameter) const;
  // Skips one parameter.
  absl::Status Skip(size_t parameter);
  // Returns where the client writes the result of a parameter that is not left in place.
  void* ResultOf(size_t parameter) const;

  TrainingRun& run_;
  Replica& replica_;
  Group& group_;
  const bool compresses_;
  std::vector<TensorId> tensors_;                  // by parameter
  std::vector<std::optional<size_t>> parameters_;  // by tensor
  // By parameter: names in traces.
  std::vector<const char*> push_names_, wait_names_;
  std::optional<TensorId> due_tensor_;
  std::vector<bool> pushed_;  // by parameter
  absl::Status failed_;       // of a result that NextArrived has seen
  bool in_place_ = false;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_TRAINING_GROUP_H_
