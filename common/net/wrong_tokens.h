// Slows those who guess tokens.

#ifndef SYNCGRADS_COMMON_NET_WRONG_TOKENS_H_
#define SYNCGRADS_COMMON_NET_WRONG_TOKENS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/line_throttle.h"
#include "common/mutex.h"

namespace syncgrads {

// Counts and logs wrong tokens, and limits how many are answered as such: of a network (NetworkOf)
// 50 at once and one more each second, of all networks together 1,000 at once and 20 more each
// second. Right tokens are not limited, so that somebody who guesses does not keep others of the
// same network out. Thread-safe.
class WrongTokens {
 public:
  // `warn` logs a line. It is called on any thread, without locks. `clock` must outlive this
  // object.
  explicit WrongTokens(std::function<void(const std::string& line)> warn,
                       const Clock& clock = Clock::Real());

  // Counts and logs a wrong token from the address `peer`, which has no port. Returns the answer to
  // it, which is not OK: `answer`, or the following.
  //
  // Errors:
  //   Unavailable  too many wrong tokens have come from the peer's network, or from all; retry
  //                later
  absl::Status Refuse(const std::string& peer, absl::Status answer) ABSL_LOCKS_EXCLUDED(mutex_);

  // The number of wrong tokens since the start.
  uint64_t count() const { return count_; }

 private:
  // How many wrong tokens may still be answered.
  struct Allowance {
    double left = 0;
    absl::Time since;
  };

  // Returns whether `allowance` has one left at `now`, and takes it.
  static bool Take(Allowance& allowance, absl::Time now, double most, double each_second);
  Allowance& AllowanceOfLocked(const std::string& network, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(const std::string& line)> warn_;
  const Clock& clock_;
  std::atomic<uint64_t> count_{0};
  Mutex mutex_;
  // By the network; see NetworkOf.
  std::map<std::string, Allowance> allowances_ ABSL_GUARDED_BY(mutex_);
  Allowance of_all_ ABSL_GUARDED_BY(mutex_);
  LineThrottle lines_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_WRONG_TOKENS_H_
