// Limits how many events of each job are logged, so that one job neither fills the log nor pushes
// the events of other jobs out of it.

#ifndef SYNCGRADS_SERVER_SERVICE_JOB_EVENT_LIMITS_H_
#define SYNCGRADS_SERVER_SERVICE_JOB_EVENT_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace syncgrads::server {

struct JobEventLimitsOptions {
  // The events that a job may have at once, and then each second. An event counts once more for
  // each KiB of its texts.
  double at_once = 300;
  double each_second = 1;
  // The further events that a job may have if they are essential.
  double reserve = 20;
  // The time from the first event that is left out until the number of these is reported.
  absl::Duration report_after = absl::Seconds(10);
  // The most jobs whose events are counted. If there are more, those that may have the most events
  // at present are forgotten.
  size_t max_jobs = 4096;
};

// A token bucket for each job. A job whose bucket is full is forgotten. Thread-safe.
class JobEventLimits {
 public:
  // `clock` must outlive this object.
  JobEventLimits(JobEventLimitsOptions options, const Clock& clock)
      : options_(options), clock_(clock) {}

  // Returns whether an event of the job, with texts of `bytes`, is logged. Counts it in either
  // case.
  bool Pass(const std::string& job, size_t bytes, bool is_essential);

  struct LeftOut {
    std::string job;
    uint64_t events = 0;
  };
  // Returns the jobs for which `report_after` has passed since an event was left out, each with the
  // number of these events, and counts from 0 again.
  std::vector<LeftOut> TakeDue();

  // The number of jobs that are not forgotten.
  size_t jobs() const;

 private:
  struct Bucket {
    // The events that the job may have at `updated`; negative if the reserve was used.
    double tokens = 0;
    absl::Time updated;
    uint64_t left_out = 0;
    // When `left_out` is to be reported. Undefined if it is 0.
    absl::Time due;
  };

  void Refill(Bucket& bucket, absl::Time now) const;
  // Returns whether nothing would change if the bucket was made anew.
  bool IsFresh(const Bucket& bucket) const;
  // Forgets jobs other than `job` until there are no more than may be.
  void MakeRoomLocked(const std::string& job, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobEventLimitsOptions options_;
  const Clock& clock_;

  mutable Mutex mutex_;
  std::map<std::string, Bucket> jobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_JOB_EVENT_LIMITS_H_
