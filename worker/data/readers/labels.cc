#include "worker/data/readers/labels.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace syncgrads {

void SetLabels(absl::Span<const uint32_t> labels, TargetKind target_kind,
               absl::FunctionRef<std::string(size_t row)> place, Table& table) {
  table.target_name = "label";
  table.target_kind = target_kind;
  table.targets.assign(labels.begin(), labels.end());
  if (target_kind == TargetKind::kNumber) return;
  // The first row of each label, sorted by name, as Table::classes is.
  std::map<std::string, size_t> first;
  for (size_t row = 0; row < labels.size(); ++row) first.emplace(absl::StrCat(labels[row]), row);
  std::map<uint32_t, size_t> positions;
  for (const auto& [name, row] : first) {
    positions[labels[row]] = table.classes.size();
    table.classes.push_back({name, place(row)});
  }
  for (size_t row = 0; row < labels.size(); ++row) {
    table.targets[row] = static_cast<double>(positions[labels[row]]);
  }
}

}  // namespace syncgrads
