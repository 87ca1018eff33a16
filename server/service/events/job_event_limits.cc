#include "server/service/events/job_event_limits.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace syncgrads::server {

JobEventLimits::JobEventLimits(JobEventLimitsOptions options, const Clock& clock)
    : options_(options), clock_(clock), all_(NewBucket(options.all, clock.Now())) {}

bool JobEventLimits::SetOrigin(const std::string& job, const std::string& network) {
  MutexLock lock(mutex_);
  if (!origins_.try_emplace(job, network).second) return false;
  known_.push_back(job);
  while (known_.size() > options_.max_origins) {
    origins_.erase(known_.front());
    known_.pop_front();
  }
  return true;
}

void JobEventLimits::ForgetOrigin(const std::string& job) {
  MutexLock lock(mutex_);
  if (origins_.erase(job) == 0) return;
  const auto found = std::find(known_.rbegin(), known_.rend(), job);
  if (found != known_.rend()) known_.erase(std::next(found).base());
}

bool JobEventLimits::Pass(const std::string& job, size_t bytes, bool is_essential) {
  const absl::Time now = clock_.Now();
  const double cost = static_cast<double>(1 + bytes / 1024);
  MutexLock lock(mutex_);
  Bucket& own = Find(jobs_, job, 1, now);
  // An event beyond the job's limit takes nothing from the others.
  if (!Has(own, 1, cost, is_essential, now)) return false;
  const auto origin = origins_.find(job);
  Bucket* const network =
      origin == origins_.end() ? nullptr : &Find(networks_, origin->second, options_.network, now);
  if (network != nullptr && !Has(*network, options_.network, cost, is_essential, now)) return false;
  if (!Has(all_, options_.all, cost, is_essential, now)) return false;
  own.tokens -= cost;
  if (network != nullptr) network->tokens -= cost;
  all_.tokens -= cost;
  return true;
}

std::vector<JobEventLimits::LeftOut> JobEventLimits::TakeDue() {
  const absl::Time now = clock_.Now();
  MutexLock lock(mutex_);
  std::vector<LeftOut> due;
  const auto take = [&](Bucket& bucket, double times, LeftOut left_out) {
    Refill(bucket, times, now);
    if (bucket.left_out == 0 || now < bucket.due) return;
    left_out.events = std::exchange(bucket.left_out, 0);
    left_out.at_once = times * options_.at_once;
    left_out.each_second = times * options_.each_second;
    due.push_back(std::move(left_out));
  };
  for (auto& [job, bucket] : jobs_) take(bucket, 1, {.job = job});
  for (auto& [network, bucket] : networks_) take(bucket, options_.network, {.network = network});
  take(all_, options_.all, {});
  std::erase_if(jobs_, [&](const auto& entry) { return IsFresh(entry.second, 1); });
  std::erase_if(networks_,
                [&](const auto& entry) { return IsFresh(entry.second, options_.network); });
  return due;
}

size_t JobEventLimits::jobs() const {
  MutexLock lock(mutex_);
  return jobs_.size();
}

JobEventLimits::Bucket JobEventLimits::NewBucket(double times, absl::Time now) const {
  return {times * options_.at_once, now, 0, now};
}

void JobEventLimits::Refill(Bucket& bucket, double times, absl::Time now) const {
  const double more = absl::ToDoubleSeconds(now - bucket.updated) * times * options_.each_second;
  bucket.tokens = std::min(times * options_.at_once, bucket.tokens + more);
  bucket.updated = now;
}

bool JobEventLimits::Has(Bucket& bucket, double times, double cost, bool is_essential,
                         absl::Time now) const {
  Refill(bucket, times, now);
  if (bucket.tokens - cost >= (is_essential ? -times * options_.reserve : 0)) return true;
  if (bucket.left_out == 0) bucket.due = now + options_.report_after;
  ++bucket.left_out;
  return false;
}

bool JobEventLimits::IsFresh(const Bucket& bucket, double times) const {
  return bucket.tokens >= times * options_.at_once && bucket.left_out == 0;
}

JobEventLimits::Bucket& JobEventLimits::Find(Buckets& buckets, const std::string& name,
                                             double times, absl::Time now) const {
  const auto [found, is_new] = buckets.try_emplace(name, NewBucket(times, now));
  if (!is_new || buckets.size() <= options_.max_jobs) return found->second;
  for (auto& [other, bucket] : buckets) Refill(bucket, times, now);
  std::erase_if(buckets, [&](const auto& entry) {
    return entry.first != name && IsFresh(entry.second, times);
  });
  while (buckets.size() > options_.max_jobs) {
    auto fullest = buckets.end();
    for (auto one = buckets.begin(); one != buckets.end(); ++one) {
      if (one->first == name) continue;
      if (fullest == buckets.end() || one->second.tokens > fullest->second.tokens) fullest = one;
    }
    if (fullest == buckets.end()) break;
    buckets.erase(fullest);
  }
  return found->second;
}

}  // namespace syncgrads::server
