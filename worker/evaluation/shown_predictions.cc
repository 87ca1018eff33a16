#include "worker/evaluation/shown_predictions.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/base/string_list.h"
#include "worker/team/gather_shards.h"

namespace syncgrads {
namespace {

// Returns "3" or "Iris-setosa", followed by the source's description of the class, if
// any.
std::string Describe(const DataSet& data, uint32_t number) {
  std::string name = data.classes.has_value() ? data.classes->NameOf(number) : absl::StrCat(number);
  const std::vector<std::string>& descriptions = data.data.shards.front().table.class_descriptions;
  if (number < descriptions.size()) absl::StrAppend(&name, ": ", descriptions[number]);
  return name;
}

// Returns the probabilities of all classes, by number.
template <typename T>
std::vector<double> Probabilities(const Loss& loss, const Matrix<T>& outputs, Eigen::Index row) {
  std::vector<double> scores;
  if (!loss.has_output_for_each_class()) {
    const double one = 1 / (1 + std::exp(-static_cast<double>(outputs(row, 0))));
    return {1 - one, one};
  }
  for (Eigen::Index i = 0; i < outputs.cols(); ++i) scores.push_back(outputs(row, i));
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
  return scores;
}

std::string ClassLine(const DataSet& data, uint32_t number, double probability, bool is_right) {
  return absl::StrFormat("  %s %5.1f %%  %s", is_right ? "*" : " ", 100 * probability,
                         Describe(data, number));
}

template <typename T>
std::string ShowClasses(const Loss& loss, const Matrix<T>& outputs, Eigen::Index row, double target,
                        const DataSet& data, size_t shown) {
  const std::vector<double> probabilities = Probabilities(loss, outputs, row);
  std::vector<uint32_t> order(probabilities.size());
  std::iota(order.begin(), order.end(), 0);
  // If probabilities are equal, the lower class number comes first, as in CountTopK.
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return probabilities[a] > probabilities[b]; });
  const auto right = static_cast<uint32_t>(target);
  std::string text = Describe(data, right);
  for (size_t place = 0; place < order.size(); ++place) {
    const uint32_t number = order[place];
    const bool is_right = number == right;
    if (place >= shown && !is_right) continue;
    absl::StrAppend(&text, "\n", ClassLine(data, number, probabilities[number], is_right));
    if (place >= shown) absl::StrAppend(&text, " (place ", place + 1, ")");
  }
  return text;
}

template <typename T>
std::string ShowRow(const Loss& loss, const Matrix<T>& outputs, Eigen::Index row,
                    absl::Span<const double> targets, const DataSet& data, size_t shown) {
  if (loss.has_classes()) return ShowClasses(loss, outputs, row, targets[0], data, shown);
  std::string text;
  for (Eigen::Index i = 0; i < outputs.cols(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", outputs(row, i));
  }
  return absl::StrCat(text, ", is ", absl::StrJoin(targets, " "));
}

// Returns the texts of the first rows of a shard.
template <typename T>
absl::StatusOr<std::vector<std::string>> ShowShard(Model<T>& model, const Loss& loss,
                                                   const DataSet& data, RowsInBatches<T>& source,
                                                   size_t shard, const ShowOptions& options) {
  const Shard& from = data.data.shards[shard];
  std::vector<RowId> rows;
  for (size_t row = 0; row < std::min(options.rows, from.table.rows); ++row) {
    rows.push_back({shard, row});
  }
  std::vector<std::string> shown;
  SYNCGRADS_RETURN_IF_ERROR(source.ForEach(
      rows, /*damaged=*/nullptr,
      [&](const Matrix<T>& features, absl::Span<const double> targets) -> absl::Status {
        const Matrix<T>& outputs = model.Forward(Pass(), features);
        SYNCGRADS_RETURN_IF_ERROR(model.status());
        const size_t each = targets.size() / static_cast<size_t>(outputs.rows());
        for (Eigen::Index i = 0; i < outputs.rows(); ++i) {
          shown.push_back(absl::StrCat(
              "shard ", from.number, ", row ", shown.size(), ": ",
              ShowRow(loss, outputs, i, targets.subspan(static_cast<size_t>(i) * each, each), data,
                      options.classes),
              "\n"));
        }
        return absl::OkStatus();
      }));
  return shown;
}

}  // namespace

template <typename T>
absl::StatusOr<std::string> ShowPredictions(Model<T>& model, const Loss& loss, const DataSet& data,
                                            RowsInBatches<T>& source, const ShowOptions& options,
                                            Team& team) {
  std::map<uint64_t, std::string> ours;
  for (size_t shard = 0; shard < data.data.shards.size(); ++shard) {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> rows,
                               ShowShard(model, loss, data, source, shard, options));
    ours[data.data.shards[shard].number] = EncodeStrings(rows);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const auto by_shard, GatherShards("shown predictions", ours, team));
  std::string text;
  size_t shown = 0;
  for (const auto& [number, bytes] : by_shard) {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> rows, DecodeStrings(bytes));
    for (size_t i = 0; i < rows.size() && shown < options.rows; ++i, ++shown) text += rows[i];
  }
  return text;
}

template absl::StatusOr<std::string> ShowPredictions(Model<float>&, const Loss&, const DataSet&,
                                                     RowsInBatches<float>&, const ShowOptions&,
                                                     Team&);
template absl::StatusOr<std::string> ShowPredictions(Model<double>&, const Loss&, const DataSet&,
                                                     RowsInBatches<double>&, const ShowOptions&,
                                                     Team&);

}  // namespace syncgrads
