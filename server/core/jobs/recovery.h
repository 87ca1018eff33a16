// How long a server that was started again took until one of its jobs trained on.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_RECOVERY_H_
#define SYNCGRADS_SERVER_CORE_JOBS_RECOVERY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "server/core/jobs/job.h"

namespace syncgrads::server {

// Thread-safe. Takes the locks of jobs with its own lock held.
class Recovery {
 public:
  // `jobs`: those that were read from the state directory. `started`: when the server started.
  Recovery(const std::vector<std::shared_ptr<Job>>& jobs, absl::Time started);

  // The number of jobs that were read.
  uint32_t jobs() const { return count_; }
  // The time from the start of the server until a round of one of them closed; zero if none has
  // closed yet. A job that is closed before this is called does not count, so call it regularly.
  absl::Duration duration() const;

 private:
  const uint32_t count_;
  const absl::Time started_;

  mutable Mutex mutex_;
  mutable absl::Duration duration_ ABSL_GUARDED_BY(mutex_);
  // Empty once `duration_` is known.
  mutable std::vector<std::weak_ptr<const Job>> awaited_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_RECOVERY_H_
