#include "examples/own_reader/libsvm.h"

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr uint64_t kMostFeatures = 1 << 24;

absl::StatusOr<std::string> Setting(const CustomReaderOptions& options, const std::string& key) {
  const auto it = options.settings.find(key);
  if (it != options.settings.end()) return it->second;
  return absl::InvalidArgumentError(
      absl::StrCat("reader \"libsvm\" needs a setting \"", key, "\""));
}

// "3:0.5": sets the third number of `row`.
absl::Status SetFeature(absl::string_view text, absl::Span<double> row, absl::string_view place) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  uint64_t number = 0;
  if (!absl::SimpleAtoi(parts.first, &number) || number == 0 || number > row.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": \"", text, "\" is of no feature from 1 to ", row.size()));
  }
  double value = 0;
  if (!absl::SimpleAtod(parts.second, &value) || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": \"", text, "\" has no finite number"));
  }
  row[number - 1] = value;
  return absl::OkStatus();
}

struct Label {
  std::string text;
  std::string place;
};

// Numbers, or positions among the classes' names in byte order.
absl::Status SetTargets(const std::vector<Label>& labels, TargetKind kind, Table& table) {
  table.target_name = "label";
  table.target_kind = kind;
  std::map<std::string, std::string> classes;  // each with its first place
  for (const Label& label : labels) classes.emplace(label.text, label.place);
  if (kind == TargetKind::kClass) {
    for (const auto& [name, place] : classes) table.classes.push_back({name, place});
  }
  for (const Label& label : labels) {
    double target = 0;
    if (kind == TargetKind::kClass) {
      target = static_cast<double>(std::distance(classes.begin(), classes.find(label.text)));
    } else if (!absl::SimpleAtod(label.text, &target) || !std::isfinite(target)) {
      return absl::InvalidArgumentError(
          absl::StrCat(label.place, ": label \"", label.text, "\" is no finite number"));
    }
    table.targets.push_back(target);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Table> ReadLibsvm(const CustomReaderOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string path, Setting(options, "path"));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string count, Setting(options, "features"));
  uint64_t features = 0;
  if (!absl::SimpleAtoi(count, &features) || features == 0 || features > kMostFeatures) {
    return absl::InvalidArgumentError(absl::StrCat("reader \"libsvm\": features is \"", count,
                                                   "\", must be from 1 to ", kMostFeatures));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(
      const std::string text,
      ReadDecompressed(*options.storage, path, std::numeric_limits<size_t>::max()));
  Table table;
  for (uint64_t i = 1; i <= features; ++i) table.feature_names.push_back(absl::StrCat(i));
  std::vector<Label> labels;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::string place = absl::StrCat(options.storage->NameOf(path), ":", ++number);
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    labels.push_back({std::string(words[0]), place});
    table.features.resize(++table.rows * features);
    const absl::Span<double> row = absl::MakeSpan(table.features).last(features);
    for (size_t i = 1; i < words.size(); ++i) {
      SYNCGRADS_RETURN_IF_ERROR(SetFeature(words[i], row, place));
    }
  }
  const TargetKind kind = options.columns.target_kind;
  if (kind != TargetKind::kNone) SYNCGRADS_RETURN_IF_ERROR(SetTargets(labels, kind, table));
  return table;
}

}  // namespace syncgrads
