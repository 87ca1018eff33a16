#include "common/log_level.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {

absl::string_view ToString(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
  }
  return "";
}

bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* error) {
  for (const LogLevel known : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning}) {
    if (text != ToString(known)) continue;
    *level = known;
    return true;
  }
  *error = absl::StrCat("unknown level \"", text, "\": it must be debug, info or warning");
  return false;
}

std::string AbslUnparseFlag(LogLevel level) { return std::string(ToString(level)); }

}  // namespace syncgrads
