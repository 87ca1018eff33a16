// Counts of the rounds of one group on one server, for status reports: how many have closed, how
// long they took, and how late each member contributes.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_GROUP_COUNTS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_GROUP_COUNTS_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "server/core/rounds/duration_histogram.h"
#include "server/core/rounds/round_rate.h"

namespace syncgrads::server {

// The counts of one member's contributions to one group on one server.
struct ContributorCounts {
  MemberId member{};
  // The newest round that it has contributed to, or has skipped.
  Round round{};
  // The delay of each contribution after its round's first. Of the group's first chunk only.
  DurationCounts arrival_lag;
  // The number of contributions that were refused, or partly left out, because they were not
  // finite.
  uint64_t non_finite = 0;
};

// A ServedGroup owns it, and its chunks report to it through a ChunkCounter. Reporting takes a lock
// only for a member's first contribution, for contributions that are not finite, when a round of
// the first chunk closes, and when members have gone. Thread-safe. Calls nothing, so that it may be
// used with any lock held.
class GroupCounts {
 public:
  // One member's counts. The lock of the group's first chunk serializes the writers of `round` and
  // `arrival_lag`.
  struct Contributor {
    std::atomic<uint64_t> round{0};
    DurationHistogram arrival_lag;
    std::atomic<uint64_t> non_finite{0};
  };

  // A round of any chunk has closed.
  void RoundClosed(absl::Time now) {
    if (rounds_closed_.fetch_add(1, std::memory_order_relaxed) == 0) {
      first_closed_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
    }
    last_closed_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
  }
  // A round of the first chunk has closed, `duration` after its first contribution. The caller
  // holds that chunk's lock.
  void AddRoundDuration(absl::Duration duration) { round_duration_.Add(duration); }
  // A round of the first chunk has closed, or a version of it was made.
  void FirstChunkClosed(absl::Time now) { rate_.Add(now); }

  // Returns the member's counts. If there are none, makes them.
  std::shared_ptr<Contributor> Of(MemberId member);
  // Removes the counts of the members for which `has_gone` returns true.
  void Forget(absl::FunctionRef<bool(MemberId)> has_gone);

  uint64_t rounds_closed() const { return rounds_closed_.load(std::memory_order_relaxed); }
  // The time at which a round has closed last; InfinitePast if none has.
  absl::Time last_closed() const {
    const int64_t last = last_closed_.load(std::memory_order_relaxed);
    return last == kNever ? absl::InfinitePast() : absl::FromUnixNanos(last);
  }
  // The time at which the first round has closed; InfiniteFuture if none has.
  absl::Time first_closed() const {
    const int64_t first = first_closed_.load(std::memory_order_relaxed);
    return first == kNever ? absl::InfiniteFuture() : absl::FromUnixNanos(first);
  }
  DurationCounts round_duration() const { return round_duration_.Read(); }
  // The rate of FirstChunkClosed in a second; see RoundRate.
  double rounds_per_second(absl::Time now) const { return rate_.Read(now); }
  // In ascending order of members.
  std::vector<ContributorCounts> Contributors() const;

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::min();

  std::atomic<uint64_t> rounds_closed_{0};
  std::atomic<int64_t> first_closed_{kNever};
  std::atomic<int64_t> last_closed_{kNever};
  DurationHistogram round_duration_;
  RoundRate rate_;

  mutable Mutex mutex_;
  std::map<MemberId, std::shared_ptr<Contributor>> contributors_ ABSL_GUARDED_BY(mutex_);
};

// What one chunk reports to the counts of its group. Not thread-safe; protected by the chunk's
// lock. Without counts, its methods do nothing.
class ChunkCounter {
 public:
  // `counts` must outlive this object. `is_first`: the chunk is the group's first one on this
  // server, of which the contributions and the durations are counted.
  void ReportTo(GroupCounts* counts, bool is_first) {
    counts_ = counts;
    is_first_ = is_first;
  }
  // Whether Contributed and a time for RoundClosed are of any use.
  bool is_first() const { return is_first_; }

  // A member has contributed to `round`, or has skipped it. Allocates memory only for a member's
  // first contribution.
  void Contributed(MemberId member, Round round) {
    if (is_first_) Of(member).round.store(ToNumber(round), std::memory_order_relaxed);
  }
  // A member has contributed `lag` after the round's first contribution.
  void AddLag(MemberId member, absl::Duration lag) {
    if (is_first_) Of(member).arrival_lag.Add(lag);
  }
  // A round has closed, whose first contribution arrived at `since`.
  void RoundClosed(absl::Time since, absl::Time now) {
    VersionMade(now);
    if (is_first_) counts_->AddRoundDuration(now - since);
  }
  // A version was made, under bounded staleness or async.
  void VersionMade(absl::Time now) {
    if (counts_ != nullptr) counts_->RoundClosed(now);
    if (is_first_) counts_->FirstChunkClosed(now);
  }
  // A contribution of this member was not finite.
  void NonFinite(MemberId member) {
    if (counts_ == nullptr) return;
    counts_->Of(member)->non_finite.fetch_add(1, std::memory_order_relaxed);
  }
  // Members may have gone.
  void Forget(absl::FunctionRef<bool(MemberId)> has_gone) {
    if (!is_first_) return;
    std::erase_if(contributors_, [has_gone](const auto& entry) { return has_gone(entry.first); });
    counts_->Forget(has_gone);
  }

 private:
  GroupCounts::Contributor& Of(MemberId member) {
    std::shared_ptr<GroupCounts::Contributor>& contributor = contributors_[member];
    if (contributor == nullptr) contributor = counts_->Of(member);
    return *contributor;
  }

  GroupCounts* counts_ = nullptr;
  bool is_first_ = false;
  std::map<MemberId, std::shared_ptr<GroupCounts::Contributor>> contributors_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_GROUP_COUNTS_H_
