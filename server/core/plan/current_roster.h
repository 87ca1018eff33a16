// The newest roster of a job, in one place for all of its chunks.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_CURRENT_ROSTER_H_
#define SYNCGRADS_SERVER_CORE_PLAN_CURRENT_ROSTER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "server/core/plan/roster.h"

namespace syncgrads::server {

// A chunk reads the roster each time it is used, and keeps no copy. So a change is seen by every
// chunk as soon as Set returns, it costs nothing for chunks that are not used, and earlier rosters
// are freed.
//
// Thread-safe. Calls nothing, so that it may be used with any lock held.
class CurrentRoster {
 public:
  struct Version {
    std::shared_ptr<const Roster> roster;
    // Counts the calls of Set.
    uint64_t number = 0;
  };

  explicit CurrentRoster(std::shared_ptr<const Roster> roster) : current_{std::move(roster), 0} {}

  Version Get() const {
    MutexLock lock(mutex_);
    return current_;
  }
  void Set(std::shared_ptr<const Roster> roster) {
    MutexLock lock(mutex_);
    // The earlier roster is freed by the caller of this function, without the lock.
    current_.roster.swap(roster);
    ++current_.number;
  }

 private:
  mutable Mutex mutex_;
  Version current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_CURRENT_ROSTER_H_
