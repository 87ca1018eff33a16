// The text of a duration in log lines and error messages.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_SECONDS_H_
#define SYNCGRADS_SERVER_CORE_PLAN_SECONDS_H_

#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace syncgrads::server {

// For example "2.5s".
inline std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.1fs", absl::ToDoubleSeconds(duration));
}

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_SECONDS_H_
