#include "worker/job/check_values.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {

absl::Status CheckEnum(const Field& field, absl::string_view name, int value, bool known) {
  if (known) return absl::OkStatus();
  return field.Member(name).Error(absl::StrCat("unknown value ", value));
}

absl::Status CheckCount(const Field& field, absl::string_view name, uint32_t value,
                        uint32_t largest) {
  if (value > 0 && value <= largest) return absl::OkStatus();
  return field.Member(name).Error(absl::StrCat("is ", value, ", must be from 1 to ", largest));
}

absl::Status CheckThreads(const Field& field, absl::string_view name, uint32_t value) {
  if (value <= kMostThreads) return absl::OkStatus();
  return field.Member(name).Error(absl::StrCat("is ", value, ", must be at most ", kMostThreads));
}

absl::Status CheckFraction(const Field& field, absl::string_view name, double value) {
  if (value >= 0 && value <= 1) return absl::OkStatus();
  return field.Member(name).Error(absl::StrCat("is ", value, ", must be from 0 to 1"));
}

}  // namespace syncgrads
