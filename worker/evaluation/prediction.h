// Writes a model's predictions as a table.

#ifndef SYNCGRADS_WORKER_EVALUATION_PREDICTION_H_
#define SYNCGRADS_WORKER_EVALUATION_PREDICTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/batches/batch_reader.h"
#include "worker/batches/data_set.h"
#include "worker/nn/loss.h"
#include "worker/nn/models/model.h"
#include "worker/team/team.h"

namespace syncgrads {

// Returns the predictions for all rows of all shards of the job, in the order of the
// shards and of the rows within them, as CSV with a header:
//
//   logit cross-entropy    class,then a column for each class's probability
//   sigmoid cross-entropy  class,probability  (of class 1)
//   squared error          prediction; with several targets prediction1,prediction2,...
//   custom loss            with classes like the logit cross-entropy, else output1,output2,...
//
// `source` reads `data`. Every worker gets the whole table. A collective. Errors: DataLoss if
// another worker's part is malformed; those of RowsInBatches; the team's.
template <typename T>
absl::StatusOr<std::string> Predict(Model<T>& model, const Loss& loss, const DataSet& data,
                                    RowsInBatches<T>& source, Team& team);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_EVALUATION_PREDICTION_H_
