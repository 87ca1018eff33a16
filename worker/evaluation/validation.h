// Validation: when the model is evaluated while it is trained, on which rows, and what follows from
// the result.

#ifndef SYNCGRADS_WORKER_EVALUATION_VALIDATION_H_
#define SYNCGRADS_WORKER_EVALUATION_VALIDATION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "proto/job.pb.h"
#include "worker/batches/data_set.h"
#include "worker/evaluation/evaluation.h"
#include "worker/job/job_file.h"
#include "worker/report/progress.h"
#include "worker/team/team.h"

namespace syncgrads {

// Returns the job's specification of the validation's rows: its own, or else the training data's.
const v1::DataSpec& ValidationDataOf(const v1::JobFile& job);

// Loads the rows of a validation that has a source of its own (`validation.data`). nullopt if it
// has none. `training` is the data that the model is trained on: its classes have the same numbers
// here. Each member of `team` loads its part; a collective. In an elastic job every worker loads
// all rows, with a SoleWorker.
//
// Errors:
//   InvalidArgument  the rows have other features, or another shape, than those of `training`;
//   names
//                    both
//   others           those of LoadDataSet, with "validation.data: " before the message
absl::StatusOr<std::optional<DataSet>> LoadValidationData(const Job& job, const DataSet& training,
                                                          Team& team);

// Returns the numbers k for which a validation counts top-k.
std::vector<uint32_t> TopsOf(const v1::JobFile& job);

// Returns the accuracy, or the loss with the opposite sign: the higher, the better. nullopt if the
// evaluation has none, or if it is NaN.
std::optional<double> ScoreOf(bool by_accuracy, const Evaluation& evaluation);

// Returns the figures of a validation: "val_loss", and "top1", "top5" ... as parts of the rows.
Scores ValidationScores(const Evaluation& evaluation);

// Decides after which steps the model is validated.
class ValidationSchedule {
 public:
  // Epoch E ends after step E * steps_per_epoch - epoch_offset. Both are used only if the
  // validations are counted in epochs; `steps_per_epoch` is then at least 1.
  ValidationSchedule(const v1::ValidationSpec& spec, uint64_t steps_per_epoch,
                     int64_t epoch_offset);
  bool IsDue(uint64_t step) const { return step > 0 && (step + offset_) % every_ == 0; }

 private:
  uint64_t every_;
  // May be negative, modulo 2^64; a step after the resume plus the offset is positive.
  uint64_t offset_;
};

// Compares each validation with the best one before it, for early stopping and for the best
// checkpoint. All workers that see the same figures
// reach the same decisions. Not thread-safe.
class ValidationRecord {
 public:
  ValidationRecord(const v1::EarlyStopping& stopping, v1::Checkpoint::Best best)
      : stopping_(stopping), best_(best) {}

  // Adds the validation after `step`. A value that is NaN, or that has no rows, is not better than
  // any other.
  void Add(uint64_t step, const Evaluation& evaluation);

  // The number of steps after which the last validation was made; 0: there is none.
  uint64_t last_step() const { return static_cast<uint64_t>(state_[kLastStep]); }
  // Whether the last validation is the best so far by `best`.
  bool is_best() const {
    return last_step() != 0 && state_[kBestCheckpointStep] == state_[kLastStep];
  }
  // If training ends after the last validation, why: "val_loss has not improved by more than 0.01
  // in 3 validations; the best, 0.25, was after step 90". nullopt: training continues.
  std::optional<std::string> ReasonToStop() const;

  // The record as a tensor, for checkpoints and newcomers. Points into this object.
  NamedTensor state();
  // Called when state() has been overwritten with that of a checkpoint, with what its manifest says
  // of it. If this run's early_stopping.metric or checkpoint.best is another one, values cannot be
  // compared: begins with that part anew. Empty: unknown, taken for the same.
  void BeginWhatDiffers(absl::string_view stopping_metric, absl::string_view best);

 private:
  // kBestStep and kBest are those of early stopping, which has min_delta.
  enum Index {
    kLastStep,
    kBestStep,
    kBest,
    kWithoutImprovement,
    kBestCheckpointStep,
    kBestScore,
    kSize
  };

  const v1::EarlyStopping stopping_;
  const v1::Checkpoint::Best best_;
  std::array<double, kSize> state_ = {};
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_EVALUATION_VALIDATION_H_
