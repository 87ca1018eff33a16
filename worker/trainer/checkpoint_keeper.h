// Decides together with the other workers when a checkpoint is taken, takes it, and reports it.

#ifndef SYNCGRADS_WORKER_TRAINER_CHECKPOINT_KEEPER_H_
#define SYNCGRADS_WORKER_TRAINER_CHECKPOINT_KEEPER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "worker/checkpoint/checkpoint_schedule.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/evaluation/evaluation.h"
#include "worker/trainer/layer_states.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_group.h"
#include "worker/trainer/training_run.h"
#include "worker/trainer/training_state.h"
#include "worker/trainer/validator.h"

namespace syncgrads {

// In each step, a worker that finds a checkpoint due contributes to the group's due tensor. If it
// has a contributor, the state after the step is saved. The worker that has rank 0 in that step
// writes the checkpoint in the background. If a codec is lossy, a checkpoint is announced one step
// ahead, and the step before the checkpoint is sent uncompressed (Group::SendUncompressed), so that
// there is no compression error to be saved.
//
// In a job without checkpoints, nothing is ever due or written. Not thread-safe.
class CheckpointKeeper {
 public:
  // `group` is null if the workers have no group (best_of). The arguments outlive the object.
  CheckpointKeeper(TrainingRun& run, Replica& replica, LayerStates& states, Validator& validator,
                   TrainingState& state, TrainingGroup* group);

  // Called when the run has been restored from a checkpoint.
  void NoteRestored() { kept_step_ = run_.steps; }

  // Before a contribution: contributes to the due tensor if a checkpoint is due after the step, or
  // skips it; and lets the step be sent uncompressed if a checkpoint follows.
  absl::Status Offer();
  // Whether a checkpoint has been announced: it is taken after the step in progress.
  bool follows() const { return follows_; }
  // After a step: returns whether to take a checkpoint now. `contributors` are by tensor.
  bool IsAgreed(absl::Span<const Contributors> contributors);
  // Takes a checkpoint after the step just made. A collective of this step's members. `is_best`:
  // the validation after this step is the best so far. The state then has no later chance, so the
  // worker that writes waits for the checkpoint that is being written.
  absl::Status Take(const StepOutcome& outcome, bool is_best = false);
  // Takes a checkpoint after the last step, unless it has been taken. A collective.
  absl::Status TakeLast();

  // Called when this worker has been asked to stop, before a step. Returns CANCELLED, or OK if one
  // more step is to be made, after which a checkpoint is taken.
  absl::Status Stop();

  // Reports the outcomes that have arrived. Finish first waits for the checkpoint that is being
  // written.
  void ReportOutcomes();
  void Finish();

 private:
  // Why a checkpoint is taken; if there are several reasons, the last of them here.
  enum class Reason { kRequest, kSchedule, kBest, kLast };

  bool has_checkpoints() const { return schedule_.has_value(); }
  // Called when the workers have agreed on a checkpoint: restarts the schedule and drops
  // pending requests.
  void NoteAgreed();
  // How long a checkpoint waits for the one before it to be written; otherwise it is not taken.
  absl::Duration WaitOf(Reason reason) const;
  // Starts to write the state on the host; only on the worker that writes. `states` are those of
  // LayerStates::Gather.
  absl::Status Begin(const StepOutcome& outcome, Reason reason,
                     const std::vector<std::string>& states,
                     const std::optional<Evaluation>& evaluation);
  // Returns what determines the best checkpoint: the validation after this step, if the job has
  // validations and there was one; or, in a job without them, an evaluation of the held-out rows.
  // `writes`: whether this worker writes the checkpoint.
  absl::StatusOr<std::optional<Evaluation>> FindEvaluation(bool writes);
  // Whether another worker seems to have been stopped just before this one, after the last
  // checkpoint: it is recent, and fewer workers contribute since. A run that is resumed from
  // that checkpoint ends like an undisturbed one. The steps since then lack the contributions
  // of the stopped worker. Always false in an elastic job, which continues without a worker.
  absl::StatusOr<bool> OthersHaveStopped();
  // Reports the outcome of a checkpoint to people, to the servers and to the event log.
  void Report(const CheckpointOutcome& outcome);

  TrainingRun& run_;
  Replica& replica_;
  LayerStates& states_;
  Validator& validator_;
  TrainingState& state_;
  TrainingGroup* const group_;
  // Set if the job has checkpoints.
  std::optional<CheckpointSchedule> schedule_;
  // A checkpoint has been requested and not yet taken.
  bool requested_ = false;
  // Jobs that compress only: the step in progress is sent uncompressed, and a checkpoint
  // is taken after it.
  bool follows_ = false;
  uint64_t kept_step_ = 0;  // step of the last checkpoint, whichever worker wrote it
  // The number of workers that contributed to the step of the last checkpoint, and the time of
  // that checkpoint. 0: this run has taken none.
  size_t kept_contributors_ = 0;
  absl::Time kept_at_;
  // No step follows. A due checkpoint waits for the one that is being written.
  bool is_last_ = false;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_CHECKPOINT_KEEPER_H_
