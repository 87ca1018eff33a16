#include "worker/data/classes.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// A double represents every whole number up to this one exactly.
constexpr double kMaxClass = 0x1p53;

std::optional<double> WholeNumber(const std::string& text) {
  double value;
  if (!absl::SimpleAtod(text, &value)) return std::nullopt;
  if (!(value >= 0 && value <= kMaxClass) || value != std::floor(value)) return std::nullopt;
  return value;
}

}  // namespace

absl::StatusOr<Classes> Classes::Find(absl::Span<const ClassName> found, uint32_t outputs) {
  std::set<std::string> names;
  bool numbers = true;
  for (const ClassName& one : found) {
    names.insert(one.name);
    numbers = numbers && WholeNumber(one.name).has_value();
  }
  Classes classes(numbers ? std::vector<std::string>()
                          : std::vector<std::string>(names.begin(), names.end()));
  for (const ClassName& one : found) {
    SYNCGRADS_RETURN_IF_ERROR(classes.NumberOf(one, outputs).status());
  }
  return classes;
}

std::string Classes::NameOf(uint32_t number) const {
  return number < names_.size() ? names_[number] : absl::StrCat(number);
}

absl::StatusOr<uint32_t> Classes::NumberOf(const ClassName& found, uint32_t outputs) const {
  if (names_.empty()) {
    const std::optional<double> number = WholeNumber(found.name);
    if (number.has_value() && *number < outputs) return static_cast<uint32_t>(*number);
    return absl::InvalidArgumentError(absl::StrCat(found.place, ": class \"", found.name,
                                                   "\" is out of range: the model has ", outputs,
                                                   " classes, from 0 to ", outputs - 1));
  }
  const auto it = std::find(names_.begin(), names_.end(), found.name);
  if (it == names_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        found.place, ": class \"", found.name,
        "\" is not one of the classes of the job file, or of those that the model was trained on"));
  }
  const uint32_t number = static_cast<uint32_t>(it - names_.begin());
  if (number < outputs) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(found.place, ": class \"", found.name, "\" has number ", number, ": there are ",
                   names_.size(), " classes, but the model has outputs for ", outputs));
}

}  // namespace syncgrads
