#include "worker/evaluation/evaluation.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/evaluation/metrics.h"

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

bool HasCurve(const Loss& loss) {
  return loss.custom == nullptr && loss.kind == Loss::Kind::kSigmoidCrossEntropy;
}

// The results of this worker's rows.
struct Counts {
  explicit Counts(size_t tops) : top(tops) {}

  uint64_t rows = 0;
  double loss = 0;
  uint64_t correct = 0;
  std::vector<uint64_t> top;
  std::vector<ScoredLabel> scores;
};

template <typename T>
void CountBatch(const Loss& loss, const Matrix<T>& outputs, absl::Span<const double> targets,
                const EvaluationOptions& options, Counts& counts) {
  counts.rows += static_cast<uint64_t>(outputs.rows());
  counts.loss += SumOfLosses(loss, outputs, targets);
  if (loss.has_classes()) counts.correct += CountCorrect(loss, outputs, targets);
  for (size_t i = 0; i < options.top.size(); ++i) {
    const uint32_t k = options.top[i];
    counts.top[i] += k == 1 ? CountCorrect(loss, outputs, targets) : CountTopK(outputs, targets, k);
  }
  if (!HasCurve(loss)) return;
  for (size_t i = 0; i < targets.size(); ++i) {
    counts.scores.push_back(
        {static_cast<double>(outputs(static_cast<Eigen::Index>(i), 0)), targets[i] > 0.5});
  }
}

}  // namespace

std::vector<RowId> RowsToEvaluate(const DataSet& data, uint32_t validation_every, bool held_out,
                                  const Team& team) {
  std::vector<RowId> rows = RowsOf(data.data, validation_every, held_out);
  if (data.data.shards.size() < data.data.total_shards) return rows;
  std::vector<RowId> part;
  for (size_t i = team.rank(); i < rows.size(); i += team.world_size()) part.push_back(rows[i]);
  return part;
}

std::string ToString(const Evaluation& evaluation) {
  std::string text = absl::StrFormat("loss %.6g", evaluation.loss);
  if (evaluation.correct.has_value() && evaluation.rows > 0) {
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
                                    RowsInBatches<T>& source, absl::Span<const RowId> rows,
                                    Team& team, const EvaluationOptions& options) {
  Counts counts(options.top.size());
  const absl::Status counted = source.ForEach(
      rows, options.damaged,
      [&](const Matrix<T>& features, absl::Span<const double> targets) -> absl::Status {
        const Matrix<T>& outputs = model.Forward(Pass(), features);
        SYNCGRADS_RETURN_IF_ERROR(model.status());
        CountBatch(loss, outputs, targets, options, counts);
        return absl::OkStatus();
      });
  // A worker that has failed takes part, so that the others do not wait for it.
  SYNCGRADS_RETURN_IF_ERROR(team.Barrier(name));
  std::vector<double> sums = {counted.ok() ? 0.0 : 1.0, static_cast<double>(counts.rows),
                              counts.loss, static_cast<double>(counts.correct)};
  for (const uint64_t count : counts.top) sums.push_back(static_cast<double>(count));
  SYNCGRADS_ASSIGN_OR_RETURN(
      const uint32_t workers,
      team.AllReduce(absl::StrCat(name, "/sums"), absl::MakeSpan(sums), Reduction::kSum));
  SYNCGRADS_RETURN_IF_ERROR(counted);
  if (sums[0] > 0) {
    return absl::AbortedError(absl::StrCat(sums[0], " of ", workers,
                                           " workers could not evaluate their rows (\"", name,
                                           "\"); their own errors say why"));
  }
  Evaluation evaluation;
  evaluation.workers = workers;
  evaluation.rows = static_cast<uint64_t>(sums[1]);
  if (evaluation.rows > 0) evaluation.loss = sums[2] / sums[1];
  if (loss.has_classes()) evaluation.correct = static_cast<uint64_t>(sums[3]);
  for (size_t i = 0; i < options.top.size(); ++i) {
    evaluation.top.emplace_back(options.top[i], static_cast<uint64_t>(sums[4 + i]));
  }
  if (HasCurve(loss)) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        evaluation.area_under_curve,
        GatherAreaUnderCurve(absl::StrCat(name, "/scores"), counts.scores, team));
  }
  return evaluation;
}

template absl::StatusOr<Evaluation> Evaluate(absl::string_view, Model<float>&, const Loss&,
                                             RowsInBatches<float>&, absl::Span<const RowId>, Team&,
                                             const EvaluationOptions&);
template absl::StatusOr<Evaluation> Evaluate(absl::string_view, Model<double>&, const Loss&,
                                             RowsInBatches<double>&, absl::Span<const RowId>, Team&,
                                             const EvaluationOptions&);

}  // namespace syncgrads
