// Measures the throughput from one worker to the servers, for registrations that need it.

#ifndef SYNCGRADS_CLIENT_SESSION_LINK_RATE_H_
#define SYNCGRADS_CLIENT_SESSION_LINK_RATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "client/api/group.h"
#include "client/link/timers.h"
#include "client/link/transport.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Owned by Session. Called on threads of callers that register a group. Thread-safe. The transport
// is called without `mutex_`.
class LinkRate {
 public:
  // Groups of at least this many bytes get smaller chunks on a slow link, so the link is measured;
  // and how long that may take.
  static constexpr uint64_t kWorthProbing = 1 << 20;
  static constexpr absl::Duration kProbeTimeout = absl::Seconds(2);

  // `transport` and `timers` must outlive this object.
  LinkRate(Transport& transport, const Timers& timers) : transport_(transport), timers_(timers) {}

  // Returns the throughput to one of `servers` in bytes per second, if it can influence the group's
  // chunk size; otherwise, or if it is not known, 0. It is measured by the first such call, until
  // `deadline` at most, and then kept. `rank` is this worker's.
  double For(const GroupSpec& spec, const std::vector<std::string>& servers, uint32_t rank,
             absl::Time deadline);

 private:
  Transport& transport_;
  const Timers& timers_;

  Mutex mutex_;
  // 0: it was measured without a result.
  std::optional<double> measured_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_LINK_RATE_H_
