// The last heartbeat of one member of a job, and what its heartbeats have reported.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_PULSE_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_PULSE_H_

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/signals/figures.h"
#include "common/signals/membership.h"

namespace syncgrads::server {

// Heartbeats are recorded here, so that they never wait for Coordinator::mutex_. Shared by the
// CoordinatedJob and the member's Join stream. Thread-safe.
class Pulse {
 public:
  explicit Pulse(absl::Time now) : last_message_(now) {}

  // Renews the lease because of any message other than a heartbeat.
  void Renew(absl::Time now) {
    MutexLock lock(mutex_);
    last_message_ = std::max(last_message_, now);
  }
  // Records a heartbeat. `progress`: for each group, the newest round that the member has pushed
  // a part of. `figures`: nullopt if those of an earlier heartbeat remain.
  void Beat(absl::Time now, std::vector<GroupRound> progress,
            std::optional<TrainingFigures> figures = std::nullopt) {
    MutexLock lock(mutex_);
    last_message_ = std::max(last_message_, now);
    progress_ = std::move(progress);
    if (figures.has_value()) figures_ = std::move(figures);
  }

  // Caps the reported round of this group at `most`, the newest round that is possible.
  void CapProgress(GroupId group, Round most) {
    MutexLock lock(mutex_);
    for (GroupRound& reported : progress_) {
      if (reported.group == group) reported.round = std::min(reported.round, most);
    }
  }

  absl::Time last_message() const {
    MutexLock lock(mutex_);
    return last_message_;
  }
  // The newest round of this group that the member has reported; nullopt if none.
  std::optional<Round> ProgressOf(GroupId group) const {
    MutexLock lock(mutex_);
    return FindRound(progress_, group);
  }
  // What the member has reported last about its training; nullopt if nothing.
  std::optional<TrainingFigures> figures() const {
    MutexLock lock(mutex_);
    return figures_;
  }

 private:
  mutable Mutex mutex_;
  absl::Time last_message_ ABSL_GUARDED_BY(mutex_);
  std::vector<GroupRound> progress_ ABSL_GUARDED_BY(mutex_);
  std::optional<TrainingFigures> figures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_PULSE_H_
