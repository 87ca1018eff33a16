// Evaluates a model on given rows, exactly and over all workers.

#ifndef SYNCGRADS_WORKER_TRAIN_EVALUATION_H_
#define SYNCGRADS_WORKER_TRAIN_EVALUATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "worker/nn/loss.h"
#include "worker/nn/model.h"
#include "worker/train/batch_reader.h"
#include "worker/train/compute.h"
#include "worker/train/data_set.h"
#include "worker/train/progress.h"
#include "worker/train/team.h"

namespace syncgrads {

// The scores of a model over the rows of all workers.
struct Evaluation {
  // Rows that could be read.
  uint64_t rows = 0;
  // The mean loss of the rows, without the l2 penalty; 0 if there are no rows.
  double loss = 0;
  // Rows whose most probable class is their target; only if the loss has classes.
  std::optional<uint64_t> correct;
  // For each k that was asked for: the rows whose target is among the k most probable classes.
  std::vector<std::pair<uint32_t, uint64_t>> top;
  // The number of workers that evaluated their rows.
  uint32_t workers = 0;
  // The area under the ROC curve; only with the sigmoid cross-entropy, if both classes
  // have rows and no score is NaN.
  std::optional<double> area_under_curve;
};

// "loss 0.0712, accuracy 0.9667 (29 of 30 rows), AUC 0.9991"
std::string ToString(const Evaluation& evaluation);

// Returns the loss, the accuracy and the AUC, those of them that there are.
Scores ScoresOf(const Evaluation& evaluation);

// The data set that is evaluated, and how its rows are read.
template <typename T>
struct EvaluationSource {
  // Outlives this object.
  const DataSet* data = nullptr;
  // Reads batches ahead in parallel. Null: rows are read quickly, with FillBatch.
  std::unique_ptr<BatchReader<T>> reader;
  size_t batches_ahead = 0;
  // The rows of each forward pass: those of a micro-batch, for which there is enough memory.
  size_t batch_size = 1;
};

// Returns the source of an evaluation of `data`, which outlives it. `spec` is where the data comes
// from: the job's data, or that of its validation.
template <typename T>
EvaluationSource<T> MakeEvaluationSource(const v1::JobFile& job, const v1::DataSpec& spec,
                                         const DataSet& data, uint32_t world_size,
                                         const DeviceChoice& device);

// What an evaluation measures beside the loss and the accuracy, and what it does with images that
// cannot be read.
struct EvaluationOptions {
  // Numbers k of Evaluation::top. Only for losses with an output for each class or, with k = 1,
  // with classes.
  std::vector<uint32_t> top;
  // Images that cannot be read are left out and added to it. Null: the first is an error.
  DamagedImages* damaged = nullptr;
};

// Evaluates each worker's `rows`. A collective; `name` distinguishes it from other evaluations in
// flight. It waits for the other workers without a deadline, as Team::Barrier does.
//
// Errors:
//   Aborted  another worker could not evaluate its rows
//   others   the errors of FillBatch, BatchReader, Model::status, or the team's
template <typename T>
absl::StatusOr<Evaluation> Evaluate(absl::string_view name, Model<T>& model, const Loss& loss,
                                    EvaluationSource<T>& source, absl::Span<const RowId> rows,
                                    Team& team,
                                    const EvaluationOptions& options = EvaluationOptions());

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_EVALUATION_H_
