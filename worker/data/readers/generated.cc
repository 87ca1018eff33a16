#include "worker/data/readers/generated.h"

#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/random.h"

namespace syncgrads {
namespace {

constexpr const char* kColumns[] = {"x", "y", "above"};
constexpr const char* kDefaultTarget = "above";

absl::StatusOr<size_t> Find(const std::string& column) {
  for (size_t i = 0; i < std::size(kColumns); ++i) {
    if (column == kColumns[i]) return i;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("generated data has no column \"", column, "\"; it has x, y, above"));
}

}  // namespace

absl::StatusOr<Table> GeneratePoints(uint64_t seed, absl::Span<const size_t> rows,
                                     const TableColumns& columns) {
  const std::string target = columns.target.empty() ? kDefaultTarget : columns.target;
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t target_column, Find(target));
  std::vector<size_t> features;
  for (const std::string& name : columns.features) {
    SYNCGRADS_ASSIGN_OR_RETURN(const size_t column, Find(name));
    features.push_back(column);
  }
  if (features.empty()) {
    for (size_t i = 0; i < std::size(kColumns); ++i) {
      if (i != target_column) features.push_back(i);
    }
  }
  if (columns.target_kind == TargetKind::kClass && target != kDefaultTarget) {
    return absl::InvalidArgumentError(
        absl::StrCat("column \"", target, "\" of generated data has no classes; use column above"));
  }

  Table table;
  for (const size_t column : features) table.feature_names.push_back(kColumns[column]);
  table.target_name = target;
  table.target_kind = columns.target_kind;
  if (columns.target_kind == TargetKind::kClass) {
    table.classes = {{"0", "generated data"}, {"1", "generated data"}};
  }
  table.rows = rows.size();
  for (const size_t row : rows) {
    RandomStream random(seed, {row});
    const double x = 2 * random.NextUniform() - 1;
    const double y = 2 * random.NextUniform() - 1;
    const double above = y > x * x * x ? 1 : 0;
    const double values[] = {x, y, above};
    for (const size_t column : features) table.features.push_back(values[column]);
    if (columns.target_kind != TargetKind::kNone) table.targets.push_back(values[target_column]);
  }
  return table;
}

}  // namespace syncgrads
