#include "server/core/jobs/recovery.h"

#include <algorithm>

namespace syncgrads::server {

Recovery::Recovery(const std::vector<std::shared_ptr<Job>>& jobs, absl::Time started)
    : count_(static_cast<uint32_t>(jobs.size())),
      started_(started),
      awaited_(jobs.begin(), jobs.end()) {}

absl::Duration Recovery::duration() const {
  MutexLock lock(mutex_);
  absl::Time first = absl::InfiniteFuture();
  std::erase_if(awaited_, [&first](const std::weak_ptr<const Job>& awaited) {
    const std::shared_ptr<const Job> job = awaited.lock();
    if (job != nullptr) first = std::min(first, job->FirstClosed());
    return job == nullptr;
  });
  if (first == absl::InfiniteFuture()) return duration_;
  awaited_.clear();
  duration_ = first - started_;
  return duration_;
}

}  // namespace syncgrads::server
