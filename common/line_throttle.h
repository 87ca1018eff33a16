// Limits how often lines of one kind are logged.

#ifndef SYNCGRADS_COMMON_LINE_THROTTLE_H_
#define SYNCGRADS_COMMON_LINE_THROTTLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace syncgrads {

// Lets one line of each kind pass in ten seconds. Thread-safe.
class LineThrottle {
 public:
  explicit LineThrottle(const Clock& clock = Clock::Real()) : clock_(clock) {}

  // Returns the number of lines of `kind` since one has passed, including this one, if this one may
  // pass; otherwise counts it and returns nullopt. The kinds must be few, because each is kept.
  std::optional<uint64_t> Pass(const std::string& kind) {
    const absl::Time now = clock_.Now();
    MutexLock lock(mutex_);
    Lines& lines = lines_[kind];
    ++lines.count;
    if (now < lines.next) return std::nullopt;
    const uint64_t count = lines.count;
    lines = {now + absl::Seconds(10), 0};
    return count;
  }

 private:
  struct Lines {
    // The earliest time at which a line passes.
    absl::Time next = absl::InfinitePast();
    // The number of lines since one has passed.
    uint64_t count = 0;
  };

  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Lines> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_LINE_THROTTLE_H_
