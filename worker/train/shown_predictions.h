// Predictions for people.

#ifndef SYNCGRADS_WORKER_TRAIN_SHOWN_PREDICTIONS_H_
#define SYNCGRADS_WORKER_TRAIN_SHOWN_PREDICTIONS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "worker/nn/loss.h"
#include "worker/nn/model.h"
#include "worker/train/data_set.h"
#include "worker/train/team.h"

namespace syncgrads {

// Of classes, so many are shown at most.
inline constexpr size_t kShownClasses = 5;

// The first `count` rows, in the order of the shards and of the rows within them, with
// what the model says of each and what is right, of which `data` has the targets:
//
//   shard 0, row 3: Iris-versicolor
//      81.3 %  Iris-virginica
//    *  18.6 %  Iris-versicolor
//       0.1 %  Iris-setosa
//
// The right class is marked; if it is not among the first kShownClasses, it follows, with
// its place. Without classes: "shard 0, row 3: 4.5, is 5".
//
// Every worker gets the whole text. A collective. DataLoss if another worker's part is not
// what this function makes.
template <typename T>
absl::StatusOr<std::string> ShowPredictions(Model<T>& model, const Loss& loss, const DataSet& data,
                                            size_t count, Team& team);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_SHOWN_PREDICTIONS_H_
