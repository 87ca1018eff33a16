#include "server/service/job_event_limits.h"

#include <algorithm>
#include <utility>

namespace syncgrads::server {

bool JobEventLimits::Pass(const std::string& job, size_t bytes, bool is_essential) {
  const absl::Time now = clock_.Now();
  MutexLock lock(mutex_);
  const auto [found, is_new] = jobs_.try_emplace(job, Bucket{options_.at_once, now, 0, now});
  if (is_new) MakeRoomLocked(job, now);
  Bucket& bucket = found->second;
  Refill(bucket, now);
  const double cost = static_cast<double>(1 + bytes / 1024);
  if (bucket.tokens - cost >= (is_essential ? -options_.reserve : 0)) {
    bucket.tokens -= cost;
    return true;
  }
  if (bucket.left_out == 0) bucket.due = now + options_.report_after;
  ++bucket.left_out;
  return false;
}

std::vector<JobEventLimits::LeftOut> JobEventLimits::TakeDue() {
  const absl::Time now = clock_.Now();
  MutexLock lock(mutex_);
  std::vector<LeftOut> all;
  for (auto& [job, bucket] : jobs_) {
    Refill(bucket, now);
    if (bucket.left_out == 0 || now < bucket.due) continue;
    all.push_back({job, std::exchange(bucket.left_out, 0)});
  }
  std::erase_if(jobs_, [this](const auto& entry) { return IsFresh(entry.second); });
  return all;
}

size_t JobEventLimits::jobs() const {
  MutexLock lock(mutex_);
  return jobs_.size();
}

void JobEventLimits::Refill(Bucket& bucket, absl::Time now) const {
  const double more = absl::ToDoubleSeconds(now - bucket.updated) * options_.each_second;
  bucket.tokens = std::min(options_.at_once, bucket.tokens + more);
  bucket.updated = now;
}

bool JobEventLimits::IsFresh(const Bucket& bucket) const {
  return bucket.tokens >= options_.at_once && bucket.left_out == 0;
}

void JobEventLimits::MakeRoomLocked(const std::string& job, absl::Time now) {
  if (jobs_.size() <= options_.max_jobs) return;
  for (auto& [name, bucket] : jobs_) Refill(bucket, now);
  std::erase_if(jobs_,
                [&](const auto& entry) { return entry.first != job && IsFresh(entry.second); });
  while (jobs_.size() > options_.max_jobs) {
    auto fullest = jobs_.end();
    for (auto one = jobs_.begin(); one != jobs_.end(); ++one) {
      if (one->first == job) continue;
      if (fullest == jobs_.end() || one->second.tokens > fullest->second.tokens) fullest = one;
    }
    if (fullest == jobs_.end()) return;
    jobs_.erase(fullest);
  }
}

}  // namespace syncgrads::server
