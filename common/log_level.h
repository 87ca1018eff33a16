// How much ps-server, ps-worker and ps-launch print: the type of their flag --log_level.

#ifndef SYNCGRADS_COMMON_LOG_LEVEL_H_
#define SYNCGRADS_COMMON_LOG_LEVEL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace syncgrads {

// The lowest level of the lines that are printed. Each level includes those after it.
enum class LogLevel {
  // Details for the diagnosis of a problem.
  kDebug,
  // Events of general interest: joins, progress, the end of a job.
  kInfo,
  // Events that may need attention. Errors and results are printed at every level.
  kWarning,
};

// "debug", "info" or "warning".
absl::string_view ToString(LogLevel level);

// Convert the value of a flag. Called by the flags library.
bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* error);
std::string AbslUnparseFlag(LogLevel level);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_LOG_LEVEL_H_
