// How many members of one job were dropped, and why.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_DROP_COUNTS_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_DROP_COUNTS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace syncgrads::server {

enum class DropReason {
  kLease,       // no heartbeat for longer than the lease
  kStream,      // its stream broke, and it did not reconnect within the grace period
  kBehind,      // it was behind the others for longer than step_timeout
  kState,       // it did not receive the job's state within join_timeout
  kSuperseded,  // another process has joined in its place
  kEvicted,
  kOver,  // the job ended for it: the state was lost, or the data ended before it had the state
};

inline constexpr size_t kDropReasons = 7;

// Returns the reason as one word, for example "lease".
inline const char* ToString(DropReason reason) {
  constexpr std::array<const char*, kDropReasons> kWords = {
      "lease", "stream", "behind", "state", "superseded", "evicted", "over"};
  return kWords[static_cast<size_t>(reason)];
}

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_.
class DropCounts {
 public:
  void Add(DropReason reason) { ++counts_[static_cast<size_t>(reason)]; }
  uint64_t of(DropReason reason) const { return counts_[static_cast<size_t>(reason)]; }

 private:
  std::array<uint64_t, kDropReasons> counts_{};
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_DROP_COUNTS_H_
