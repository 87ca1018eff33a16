// Evaluates a model on given rows, exactly and over all workers.

#ifndef SYNCGRADS_WORKER_EVALUATION_EVALUATION_H_
#define SYNCGRADS_WORKER_EVALUATION_EVALUATION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/batches/batch_reader.h"
#include "worker/batches/data_set.h"
#include "worker/nn/loss.h"
#include "worker/nn/models/model.h"
#include "worker/report/progress.h"
#include "worker/team/team.h"

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

// Returns this worker's part of the rows that all workers evaluate together: its own rows, or, if
// every worker has all rows, every n-th one. If `held_out` is set, the held-out rows, else the
// training rows.
std::vector<RowId> RowsToEvaluate(const DataSet& data, uint32_t validation_every, bool held_out,
                                  const Team& team);

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
//   others   the errors of RowsInBatches, Model::status, or the team's
template <typename T>
absl::StatusOr<Evaluation> Evaluate(absl::string_view name, Model<T>& model, const Loss& loss,
                                    RowsInBatches<T>& source, absl::Span<const RowId> rows,
                                    Team& team,
                                    const EvaluationOptions& options = EvaluationOptions());

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_EVALUATION_EVALUATION_H_
