// Measures how well scores agree with labels.

#ifndef SYNCGRADS_WORKER_EVALUATION_METRICS_H_
#define SYNCGRADS_WORKER_EVALUATION_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// Counts the rows whose label (a column number) is among the `k` highest scores of the
// row. Of equal scores, the one in the lower column ranks higher. NaN ranks below any
// number.
template <typename T>
uint64_t CountTopK(const Matrix<T>& scores, absl::Span<const double> labels, uint32_t k);

// The score of a row, and whether the row belongs to class 1.
struct ScoredLabel {
  double score = 0;
  bool positive = false;
};

// Returns the area under the ROC curve: the probability that a row of class 1 has a
// higher score than a row of class 0, where equal scores count one half (Mann and
// Whitney, 1947). nullopt if a class has no row, or if a score is NaN.
std::optional<double> AreaUnderCurve(std::vector<ScoredLabel> rows);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_EVALUATION_METRICS_H_
