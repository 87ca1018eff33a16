#include "worker/evaluation/prediction.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "worker/team/gather_shards.h"

namespace syncgrads {
namespace {

std::string Cell(const std::string& text) {
  if (!absl::StrContains(text, ',') && !absl::StrContains(text, '"')) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

// Prints enough digits to distinguish any two numbers of the type.
template <typename T>
std::string Number(T value) {
  return absl::StrFormat("%.*g", std::numeric_limits<T>::max_digits10, value);
}

std::string NameOf(const DataSet& data, uint32_t number) {
  return Cell(data.classes.has_value() ? data.classes->NameOf(number) : absl::StrCat(number));
}

template <typename T>
void AppendClassRow(const Matrix<T>& outputs, Eigen::Index row, const DataSet& data,
                    std::string& table) {
  Eigen::Index best = 0;
  for (Eigen::Index i = 1; i < outputs.cols(); ++i) {
    if (outputs(row, i) > outputs(row, best)) best = i;
  }
  double sum = 0;
  for (Eigen::Index i = 0; i < outputs.cols(); ++i) {
    sum += std::exp(static_cast<double>(outputs(row, i)) - outputs(row, best));
  }
  absl::StrAppend(&table, NameOf(data, static_cast<uint32_t>(best)));
  for (Eigen::Index i = 0; i < outputs.cols(); ++i) {
    const double probability =
        std::exp(static_cast<double>(outputs(row, i)) - outputs(row, best)) / sum;
    absl::StrAppend(&table, ",", Number(static_cast<T>(probability)));
  }
}

template <typename T>
void AppendOutputs(const Matrix<T>& outputs, Eigen::Index row, std::string& table) {
  for (Eigen::Index i = 0; i < outputs.cols(); ++i) {
    absl::StrAppend(&table, i == 0 ? "" : ",", Number(outputs(row, i)));
  }
}

template <typename T>
void AppendRow(const Loss& loss, const Matrix<T>& outputs, Eigen::Index row, const DataSet& data,
               std::string& table) {
  if (loss.custom != nullptr) {
    if (loss.has_classes()) {
      AppendClassRow(outputs, row, data, table);
    } else {
      AppendOutputs(outputs, row, table);
    }
    table.push_back('\n');
    return;
  }
  switch (loss.kind) {
    case Loss::Kind::kLogitCrossEntropy:
      AppendClassRow(outputs, row, data, table);
      break;
    case Loss::Kind::kSigmoidCrossEntropy:
      absl::StrAppend(&table, NameOf(data, outputs(row, 0) > 0 ? 1 : 0), ",",
                      Number(static_cast<T>(1 / (1 + std::exp(-outputs(row, 0))))));
      break;
    case Loss::Kind::kSquaredError:
      AppendOutputs(outputs, row, table);
      break;
  }
  table.push_back('\n');
}

std::string Header(const Loss& loss, const DataSet& data, int64_t outputs) {
  if (!loss.has_classes()) {
    const char* const name = loss.custom != nullptr ? "output" : "prediction";
    if (loss.custom == nullptr && outputs == 1) return absl::StrCat(name, "\n");
    std::string header = absl::StrCat(name, 1);
    for (int64_t i = 2; i <= outputs; ++i) absl::StrAppend(&header, ",", name, i);
    return header + "\n";
  }
  if (loss.custom == nullptr && loss.kind == Loss::Kind::kSigmoidCrossEntropy)
    return "class,probability\n";
  std::string header = "class";
  for (int64_t i = 0; i < outputs; ++i) {
    absl::StrAppend(&header, ",", NameOf(data, static_cast<uint32_t>(i)));
  }
  return header + "\n";
}

}  // namespace

template <typename T>
absl::StatusOr<std::string> Predict(Model<T>& model, const Loss& loss, const DataSet& data,
                                    RowsInBatches<T>& source, Team& team) {
  std::map<uint64_t, std::string> ours;
  for (size_t shard = 0; shard < data.data.shards.size(); ++shard) {
    std::string lines;
    std::vector<RowId> rows;
    for (size_t row = 0; row < data.data.shards[shard].table.rows; ++row) {
      rows.push_back({shard, row});
    }
    SYNCGRADS_RETURN_IF_ERROR(
        source.ForEach(rows, /*damaged=*/nullptr,
                       [&](const Matrix<T>& features, absl::Span<const double>) -> absl::Status {
                         const Matrix<T>& outputs = model.Forward(Pass(), features);
                         SYNCGRADS_RETURN_IF_ERROR(model.status());
                         for (Eigen::Index i = 0; i < outputs.rows(); ++i) {
                           AppendRow(loss, outputs, i, data, lines);
                         }
                         return absl::OkStatus();
                       }));
    ours[data.data.shards[shard].number] = std::move(lines);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const auto by_shard, GatherShards("predictions", ours, team));
  std::string table = Header(loss, data, model.outputs());
  for (const auto& [number, rows] : by_shard) absl::StrAppend(&table, rows);
  return table;
}

template absl::StatusOr<std::string> Predict(Model<float>&, const Loss&, const DataSet&,
                                             RowsInBatches<float>&, Team&);
template absl::StatusOr<std::string> Predict(Model<double>&, const Loss&, const DataSet&,
                                             RowsInBatches<double>&, Team&);

}  // namespace syncgrads
