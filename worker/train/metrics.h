// How well scores agree with labels.

#ifndef SYNCGRADS_WORKER_TRAIN_METRICS_H_
#define SYNCGRADS_WORKER_TRAIN_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// How many rows have their label (a column's number) among the `k` highest
// scores. Of equal scores, the one in the lower column is the higher; a NaN is
// lower than any number.
template <typename T>
uint64_t CountTopK(const Matrix<T>& scores, absl::Span<const double> labels, uint32_t k);

// A score and whether it belongs to class 1.
struct ScoredLabel {
  double score = 0;
  bool positive = false;
};

// The area under the ROC curve: the probability that a row of class 1 has a
// higher score than one of class 0, counting equal scores as one half (Mann and
// Whitney 1947). Nothing if one of the classes has no row, or a score is NaN.
std::optional<double> AreaUnderCurve(std::vector<ScoredLabel> rows);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_METRICS_H_
