#include "worker/train/evaluation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/train/metrics.h"

namespace syncgrads {
namespace {

template <typename T>
uint64_t CountCorrect(const Loss& loss, const Matrix<T>& outputs,
                      absl::Span<const double> targets) {
  if (loss.has_output_for_each_class()) return CountTopK(outputs, targets, 1);
  uint64_t correct = 0;
  for (Eigen::Index row = 0; row < outputs.rows(); ++row) {
    // The sigmoid is above one half if its argument is positive.
    if ((outputs(row, 0) > 0) == (targets[row] > 0.5)) ++correct;
  }
  return correct;
}

// A score and its label take 9 bytes in a message.
constexpr size_t kScoreBytes = sizeof(double) + 1;

absl::StatusOr<std::optional<double>> GatherAreaUnderCurve(absl::string_view name,
                                                           const std::vector<ScoredLabel>& ours,
                                                           Team& team) {
  std::string bytes(ours.size() * kScoreBytes, '\0');
  for (size_t i = 0; i < ours.size(); ++i) {
    std::memcpy(&bytes[i * kScoreBytes], &ours[i].score, sizeof(double));
    bytes[i * kScoreBytes + sizeof(double)] = ours[i].positive ? 1 : 0;
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> gathered, team.Gather(name, bytes));
  std::vector<ScoredLabel> all;
  for (const std::string& theirs : gathered) {
    for (size_t at = 0; at + kScoreBytes <= theirs.size(); at += kScoreBytes) {
      ScoredLabel row;
      std::memcpy(&row.score, &theirs[at], sizeof(double));
      row.positive = theirs[at + sizeof(double)] != 0;
      all.push_back(row);
    }
  }
  return AreaUnderCurve(std::move(all));
}

}  // namespace

std::string ToString(const Evaluation& evaluation) {
  std::string text = absl::StrFormat("loss %.6g", evaluation.loss);
  if (evaluation.correct.has_value()) {
    const double accuracy =
        static_cast<double>(*evaluation.correct) / static_cast<double>(evaluation.rows);
    absl::StrAppendFormat(&text, ", accuracy %.4f (%d of %d rows)", accuracy, *evaluation.correct,
                          evaluation.rows);
  } else {
    absl::StrAppendFormat(&text, " (%d rows)", evaluation.rows);
  }
  if (evaluation.area_under_curve.has_value()) {
    absl::StrAppendFormat(&text, ", AUC %.6f", *evaluation.area_under_curve);
  }
  return text;
}

Scores ScoresOf(const Evaluation& evaluation) {
  Scores scores = {{"loss", evaluation.loss}};
  if (evaluation.correct.has_value() && evaluation.rows > 0) {
    scores.emplace_back("accuracy", static_cast<double>(*evaluation.correct) /
                                        static_cast<double>(evaluation.rows));
  }
  if (evaluation.area_under_curve.has_value()) {
    scores.emplace_back("AUC", *evaluation.area_under_curve);
  }
  return scores;
}

template <typename T>
absl::StatusOr<Evaluation> Evaluate(absl::string_view name, Model<T>& model, const Loss& loss,
                                    const DataSet& data, absl::Span<const RowId> rows, Team& team,
                                    DamagedImages* damaged) {
  const bool has_classes = loss.has_classes();
  const bool has_curve = loss.custom == nullptr && loss.kind == Loss::Kind::kSigmoidCrossEntropy;
  double loss_sum = 0;
  uint64_t read = 0;
  uint64_t correct = 0;
  std::vector<ScoredLabel> scores;
  Matrix<T> features;
  std::vector<double> targets;
  for (size_t begin = 0; begin < rows.size(); begin += kRowsAtATime) {
    SYNCGRADS_RETURN_IF_ERROR(
        FillBatch(data, rows.subspan(begin, kRowsAtATime), ImageUse(), features, targets, damaged));
    if (targets.empty()) continue;
    read += targets.size();
    const Matrix<T>& outputs = model.Forward(Pass(), features);
    SYNCGRADS_RETURN_IF_ERROR(model.status());
    loss_sum += SumOfLosses(loss, outputs, targets);
    if (has_classes) correct += CountCorrect(loss, outputs, targets);
    if (!has_curve) continue;
    for (size_t i = 0; i < targets.size(); ++i) {
      scores.push_back(
          {static_cast<double>(outputs(static_cast<Eigen::Index>(i), 0)), targets[i] > 0.5});
    }
  }
  double sums[] = {static_cast<double>(read), static_cast<double>(correct), loss_sum};
  SYNCGRADS_RETURN_IF_ERROR(
      team.AllReduce(absl::StrCat(name, "/sums"), absl::MakeSpan(sums), Reduction::kSum).status());
  Evaluation evaluation;
  evaluation.rows = static_cast<uint64_t>(sums[0]);
  if (evaluation.rows > 0) evaluation.loss = sums[2] / sums[0];
  if (has_classes) evaluation.correct = static_cast<uint64_t>(sums[1]);
  if (has_curve) {
    SYNCGRADS_ASSIGN_OR_RETURN(evaluation.area_under_curve,
                               GatherAreaUnderCurve(absl::StrCat(name, "/scores"), scores, team));
  }
  return evaluation;
}

template absl::StatusOr<Evaluation> Evaluate(absl::string_view, Model<float>&, const Loss&,
                                             const DataSet&, absl::Span<const RowId>, Team&,
                                             DamagedImages*);
template absl::StatusOr<Evaluation> Evaluate(absl::string_view, Model<double>&, const Loss&,
                                             const DataSet&, absl::Span<const RowId>, Team&,
                                             DamagedImages*);

}  // namespace syncgrads
