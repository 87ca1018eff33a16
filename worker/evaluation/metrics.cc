#include "worker/evaluation/metrics.h"

#include <algorithm>
#include <cmath>

namespace syncgrads {
namespace {

template <typename T>
bool IsHigher(T score, Eigen::Index column, T than, Eigen::Index than_column) {
  if (std::isnan(score)) return std::isnan(than) && column < than_column;
  if (std::isnan(than)) return true;
  return score > than || (score == than && column < than_column);
}

}  // namespace

template <typename T>
uint64_t CountTopK(const Matrix<T>& scores, absl::Span<const double> labels, uint32_t k) {
  uint64_t count = 0;
  for (Eigen::Index row = 0; row < scores.rows(); ++row) {
    const auto label = static_cast<Eigen::Index>(labels[row]);
    uint32_t higher = 0;
    for (Eigen::Index column = 0; column < scores.cols(); ++column) {
      if (IsHigher(scores(row, column), column, scores(row, label), label)) ++higher;
    }
    if (higher < k) ++count;
  }
  return count;
}

std::optional<double> AreaUnderCurve(std::vector<ScoredLabel> rows) {
  double positives = 0;
  for (const ScoredLabel& row : rows) {
    if (std::isnan(row.score)) return std::nullopt;
    if (row.positive) ++positives;
  }
  const double negatives = static_cast<double>(rows.size()) - positives;
  if (positives == 0 || negatives == 0) return std::nullopt;
  std::sort(rows.begin(), rows.end(),
            [](const ScoredLabel& a, const ScoredLabel& b) { return a.score < b.score; });
  // The number of pairs in which class 1 has the higher score; ties count one half.
  double pairs = 0;
  double negatives_below = 0;
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    double equal_positives = 0;
    double equal_negatives = 0;
    for (; end < rows.size() && rows[end].score == rows[begin].score; ++end) {
      ++(rows[end].positive ? equal_positives : equal_negatives);
    }
    pairs += equal_positives * (negatives_below + equal_negatives / 2);
    negatives_below += equal_negatives;
    begin = end;
  }
  return pairs / (positives * negatives);
}

template uint64_t CountTopK(const Matrix<float>&, absl::Span<const double>, uint32_t);
template uint64_t CountTopK(const Matrix<double>&, absl::Span<const double>, uint32_t);

}  // namespace syncgrads
