// Slows those who guess tokens.

#ifndef SYNCGRADS_COMMON_WRONG_TOKENS_H_
#define SYNCGRADS_COMMON_WRONG_TOKENS_H_

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

// Counts and logs wrong tokens, and limits how many a network may send: 50 at once, and one more
// each second. A network is an IPv4 address or an IPv6 /64 network. Thread-safe.
class WrongTokens {
 public:
  // `warn` logs a line. It is called on any thread, without locks. `clock` must outlive this
  // object.
  explicit WrongTokens(std::function<void(const std::string& line)> warn,
                       const Clock& clock = Clock::Real());

  // Returns whether a token from the address `peer`, which has no port, may be compared.
  //
  // Errors:
  //   Unavailable  too many wrong tokens have come from the peer's network; retry later
  absl::Status CheckAllowance(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);

  // Counts and logs a wrong token from the address `peer`.
  void Note(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);

  // The number of wrong tokens since the start.
  uint64_t count() const { return count_; }

 private:
  // How often a network may still send a wrong token.
  struct Allowance {
    double left = 0;
    absl::Time since;
  };

  Allowance& AllowanceOfLocked(const std::string& network) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(const std::string& line)> warn_;
  const Clock& clock_;
  std::atomic<uint64_t> count_{0};
  Mutex mutex_;
  // By the network; see NetworkOf.
  std::map<std::string, Allowance> allowances_ ABSL_GUARDED_BY(mutex_);
  LineThrottle lines_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_WRONG_TOKENS_H_
