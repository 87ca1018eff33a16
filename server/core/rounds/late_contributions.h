// Counts the contributions to one chunk that arrived too late to count in their rounds.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_LATE_CONTRIBUTIONS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_LATE_CONTRIBUTIONS_H_

#include <atomic>
#include <cstdint>
#include <map>

#include "absl/functional/function_ref.h"
#include "common/ids.h"

namespace syncgrads::server {

// A member's push to a round is settled if it counted, was a skip, or was counted as late. A
// settled push that is retried is not counted as late.
//
// Not thread-safe; protected by ChunkRounds::mutex_, except that count() may be called on any
// thread without the lock.
class LateContributions {
 public:
  // `leaves_behind`: see RoundPolicy. If it is false, rounds close with the contributions of all
  // members that have data: no contribution is late, and the methods do nothing.
  explicit LateContributions(bool leaves_behind) : leaves_behind_(leaves_behind) {}

  // The member's push to `round` counted or was a skip.
  void Settle(MemberId member, Round round) {
    if (leaves_behind_) settled_[member] = round;
  }
  // The member's contribution to `round` did not count. It is counted as late unless the member's
  // push to this or a later round is settled.
  void AddLate(MemberId member, Round round) {
    if (!leaves_behind_) return;
    Round& settled = settled_[member];
    if (settled >= round) return;
    settled = round;
    count_.fetch_add(1, std::memory_order_relaxed);
  }

  // Removes the records of the members for which `has_gone` returns true. Their contributions
  // remain counted.
  void Forget(absl::FunctionRef<bool(MemberId)> has_gone) {
    std::erase_if(settled_, [has_gone](const auto& settled) { return has_gone(settled.first); });
  }

  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  const bool leaves_behind_;
  // For each member, the newest round of which its push is settled.
  std::map<MemberId, Round> settled_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_LATE_CONTRIBUTIONS_H_
