// A value that takes long to compute, and that others may ask for at any rate.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_PACED_H_
#define SYNCGRADS_SERVER_CORE_JOBS_PACED_H_

#include <algorithm>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/core/rounds/computing.h"

namespace syncgrads::server {

// Thread-safe.
template <typename T>
class Paced {
 public:
  static constexpr absl::Duration kLongest = absl::Seconds(9);

  // `clock` must outlive this object.
  explicit Paced(const Clock& clock) : clock_(clock) {}

  // Returns what `compute` returns, or has returned in the last kLongest: it is called so seldom
  // that it takes at most a tenth of the time, unless it takes more than a second. Nobody waits for
  // a call of another thread, except for the first one.
  std::shared_ptr<const T> Get(absl::FunctionRef<T()> compute) {
    MutexLock lock(mutex_);
    while (computing_ && value_ == nullptr) computed_.WaitUntil(mutex_, absl::InfiniteFuture());
    const absl::Time begin = clock_.Now();
    if (computing_ || begin < until_) return value_;
    std::shared_ptr<const T> value;
    const absl::Cleanup notify = [this] { computed_.NotifyAll(); };
    {
      const Computing computing(mutex_, computing_);
      value = std::make_shared<T>(compute());
    }
    const absl::Time end = clock_.Now();
    // A thread may have waited for its processor.
    until_ = end + std::min(9 * (end - begin), kLongest);
    value_ = value;
    return value;
  }

 private:
  const Clock& clock_;
  Mutex mutex_;
  CondVar computed_;
  bool computing_ ABSL_GUARDED_BY(mutex_) = false;
  // The newest value; null before the first. It is returned until `until_`.
  std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mutex_);
  absl::Time until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_PACED_H_
