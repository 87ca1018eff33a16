// Evaluates the model while it is trained, and ends the training early.

#ifndef SYNCGRADS_WORKER_TRAINER_VALIDATOR_H_
#define SYNCGRADS_WORKER_TRAINER_VALIDATOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "proto/job.pb.h"
#include "worker/checkpoint/manifest.h"
#include "worker/evaluation/evaluation.h"
#include "worker/evaluation/validation.h"
#include "worker/trainer/layer_states.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

// After the steps in which a validation is due, all workers evaluate the model together before the
// next step begins. They reach the same figures, and so the same decision about ending the training
// early. The members of an elastic job evaluate separately.
//
// In a job without validations, nothing is ever due. Not thread-safe.
class Validator {
 public:
  // `run` has its plan. The arguments outlive the object.
  Validator(TrainingRun& run, Replica& replica, LayerStates& states);

  // Called before the first step of a run, which may be resumed after its end.
  void Start() { stops_early_ = record_.ReasonToStop().has_value(); }
  // Called when the record has been restored from the checkpoint with this manifest.
  void NoteRestored(const Manifest& manifest) {
    record_.BeginWhatDiffers(manifest.stopping_metric, manifest.best);
  }
  // Whether the model is validated after `step`.
  bool IsDue(uint64_t step) const;
  // Whether a checkpoint is taken after each validation that is the best so far.
  bool keeps_best() const {
    return schedule_.has_value() && run_.job.checkpoint().best() != v1::Checkpoint::NONE;
  }
  // Whether the validations have ended the training.
  bool stops_early() const { return stops_early_; }

  // Validates the model after the step just made, which had this number of members, and reports the
  // result. A collective, except in elastic jobs. Errors: Aborted if one of the members is lost
  // before it has evaluated its rows; those of Replica::Evaluate.
  absl::Status Validate(size_t members);
  // Validates the model after the last step, unless this has been done.
  absl::Status ValidateLastStep();

  // The last validation; nullopt if there was none.
  const std::optional<Evaluation>& last() const { return last_; }
  // The last validation, if it was made after `step`.
  std::optional<Evaluation> ResultAfter(uint64_t step) const;
  bool is_best() const { return record_.is_best(); }
  // Whether the last validation was made after `step`.
  bool was_made_after(uint64_t step) const { return record_.last_step() == step; }
  // The record as a tensor, for checkpoints and newcomers; nullopt in jobs without validations.
  std::optional<NamedTensor> state();

  // Elastic jobs only: NoteMembers has the members of the step before a validation. As long as
  // watches_members(), WatchMembers is called with each later step, and reports those that are gone
  // since.
  void NoteMembers(const StepOutcome& outcome) { validated_with_ = outcome.members; }
  bool watches_members() const { return !validated_with_.empty(); }
  void WatchMembers(const StepOutcome& outcome);

 private:
  absl::StatusOr<Evaluation> EvaluateRows(size_t members);

  TrainingRun& run_;
  Replica& replica_;
  LayerStates& states_;
  // Set if the job has validations.
  std::optional<ValidationSchedule> schedule_;
  ValidationRecord record_;
  std::optional<Evaluation> last_;
  bool stops_early_ = false;
  // Elastic jobs only: the members at the last validation, until one of them is gone.
  std::vector<std::string> validated_with_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_VALIDATOR_H_
