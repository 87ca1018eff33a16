// The delay before the next attempt to connect, and which errors are worth one.

#ifndef SYNCGRADS_CLIENT_LINK_BACKOFF_H_
#define SYNCGRADS_CLIENT_LINK_BACKOFF_H_

#include <algorithm>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncgrads::client {

// Exponential backoff: 50 ms, doubled for each consecutive attempt, up to 1 s. Not thread-safe.
class Backoff {
 public:
  static constexpr absl::Duration kLongest = absl::Seconds(1);

  absl::Duration Next() {
    const absl::Duration delay = next_;
    next_ = std::min(2 * next_, absl::Duration(kLongest));
    return delay;
  }
  void Reset() { next_ = absl::Milliseconds(50); }

 private:
  absl::Duration next_ = absl::Milliseconds(50);
};

// True if a stream that ended with `status` should be opened again: the server was unreachable, is
// restarting, or closed the stream without a reason.
inline bool IsWorthAnotherAttempt(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_LINK_BACKOFF_H_
