// Evaluates a model on given rows, exactly and over all workers.

#ifndef SYNCGRADS_WORKER_TRAIN_EVALUATION_H_
#define SYNCGRADS_WORKER_TRAIN_EVALUATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/nn/loss.h"
#include "worker/nn/model.h"
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
  // The area under the ROC curve; only with the sigmoid cross-entropy, if both classes
  // have rows and no score is NaN.
  std::optional<double> area_under_curve;
};

// "loss 0.0712, accuracy 0.9667 (29 of 30 rows), AUC 0.9991"
std::string ToString(const Evaluation& evaluation);

// Returns the loss, the accuracy and the AUC, those of them that there are.
Scores ScoresOf(const Evaluation& evaluation);

// Evaluates each worker's `rows` of `data`. A collective; `name` distinguishes it from
// other evaluations in flight. Images that cannot be read are left out and added to
// `damaged`; if `damaged` is null, the first is an error.
template <typename T>
absl::StatusOr<Evaluation> Evaluate(absl::string_view name, Model<T>& model, const Loss& loss,
                                    const DataSet& data, absl::Span<const RowId> rows, Team& team,
                                    DamagedImages* damaged = nullptr);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_EVALUATION_H_
