// Formats predictions for people to read.

#ifndef SYNCGRADS_WORKER_EVALUATION_SHOWN_PREDICTIONS_H_
#define SYNCGRADS_WORKER_EVALUATION_SHOWN_PREDICTIONS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "worker/batches/batch_reader.h"
#include "worker/batches/data_set.h"
#include "worker/nn/loss.h"
#include "worker/nn/models/model.h"
#include "worker/team/team.h"

namespace syncgrads {

struct ShowOptions {
  // The number of rows, from the first on.
  size_t rows = 0;
  // How many classes are shown for each row, the most probable first. Not 0.
  size_t classes = 5;
};

// Returns a text with the predictions for the first rows, in the order of the shards and of
// the rows within them. `data` must have targets; `source` reads it.
//
//   shard 0, row 3: Iris-versicolor
//        81.3 %  Iris-virginica
//     *  18.6 %  Iris-versicolor
//         0.1 %  Iris-setosa
//
// The first line has the target, which "*" marks in the list. If the target is not among
// the shown classes, it follows them, with its place. If the loss has no classes, a
// row is "shard 0, row 3: 4.5, is 5".
//
// Every worker gets the whole text. A collective. Errors: DataLoss if another worker's
// part is malformed; those of RowsInBatches; the team's.
template <typename T>
absl::StatusOr<std::string> ShowPredictions(Model<T>& model, const Loss& loss, const DataSet& data,
                                            RowsInBatches<T>& source, const ShowOptions& options,
                                            Team& team);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_EVALUATION_SHOWN_PREDICTIONS_H_
