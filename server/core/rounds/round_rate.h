// How many rounds close in a second.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_RATE_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_RATE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace syncgrads::server {

// Keeps the number of closed rounds at some times of the last seconds. Add allocates nothing.
// Thread-safe. Calls nothing, so that it may be used with any lock held.
class RoundRate {
 public:
  // The rate is that of about this time.
  static constexpr absl::Duration kWindow = absl::Seconds(5);

  // A round has closed.
  void Add(absl::Time now) {
    MutexLock lock(mutex_);
    ++closed_;
    last_ = now;
    if (marks_ > 0 && now < MarkLocked(marks_ - 1).at + kInterval) return;
    ring_[marks_++ % kMarks] = {now, closed_};
  }

  // Returns the number of rounds that close in a second. It is 0 if none has closed within kWindow,
  // and after the first round. If the open round takes longer than the ones before, it counts.
  double Read(absl::Time now) const {
    MutexLock lock(mutex_);
    if (marks_ == 0 || now - last_ > kWindow) return 0;
    // The newest mark that is not in the window, or the oldest one.
    const size_t oldest = marks_ > kMarks ? marks_ - kMarks : 0;
    size_t from = oldest;
    while (from + 1 < marks_ && MarkLocked(from + 1).at <= now - kWindow) ++from;
    const auto rounds = static_cast<double>(closed_ - MarkLocked(from).closed);
    const double took = absl::ToDoubleSeconds(last_ - MarkLocked(from).at);
    if (rounds == 0 || took <= 0) return 0;
    const double open = absl::ToDoubleSeconds(now - last_);
    return rounds / std::max(took, took + open - took / rounds);
  }

 private:
  struct Mark {
    absl::Time at;
    uint64_t closed = 0;
  };
  // The time between two marks; more if rounds are rarer.
  static constexpr absl::Duration kInterval = absl::Milliseconds(500);
  // One of them is not in the window.
  static constexpr size_t kMarks = 12;

  const Mark& MarkLocked(size_t number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ring_[number % kMarks];
  }

  mutable Mutex mutex_;
  uint64_t closed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mutex_);
  // The number of marks that were set. The ring has the newest ones.
  size_t marks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::array<Mark, kMarks> ring_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_RATE_H_
