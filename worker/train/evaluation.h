// What a model is worth on given rows, exact over all workers.

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
#include "worker/train/team.h"

namespace syncgrads {

// Over the rows of all workers.
struct Evaluation {
  uint64_t rows = 0;
  // The mean of the rows' losses, without the l2 penalty.
  double loss = 0;
  // Rows whose most probable class is the right one; with the cross-entropies.
  std::optional<uint64_t> correct;
  // Area under the ROC curve; with the sigmoid cross-entropy, if there are rows
  // of both classes.
  std::optional<double> area_under_curve;
};

// "loss 0.0712, accuracy 0.9667 (29 of 30 rows), AUC 0.9991"
std::string ToString(const Evaluation& evaluation);

// Evaluates each worker's `rows` of `data`. A collective; `name` tells it from
// others that are under way. Images that cannot be read are left out and added to
// `damaged`; if that is null, they are an error.
template <typename T>
absl::StatusOr<Evaluation> Evaluate(absl::string_view name, Model<T>& model, const Loss& loss,
                                    const DataSet& data, absl::Span<const RowId> rows, Team& team,
                                    DamagedImages* damaged = nullptr);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_EVALUATION_H_
