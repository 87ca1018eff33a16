// Limits how many events of jobs are logged: of each job, so that one neither fills the log nor
// pushes the events of other jobs out of it; and of all jobs that one network has opened, and of
// all jobs, so that jobs with new names do not either.

#ifndef SYNCGRADS_SERVER_SERVICE_EVENTS_JOB_EVENT_LIMITS_H_
#define SYNCGRADS_SERVER_SERVICE_EVENTS_JOB_EVENT_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
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
  // So many times these numbers are for all jobs of one network together, and for all jobs.
  double network = 5;
  double all = 20;
  // The time from the first event that is left out until the number of these is reported.
  absl::Duration report_after = absl::Seconds(10);
  // The most jobs whose events are counted, and the most networks. If there are more, those that
  // may have the most events at present are forgotten.
  size_t max_jobs = 4096;
  // The most jobs whose networks are known. If there are more, that of the oldest is forgotten.
  size_t max_origins = 4096;
};

// A token bucket for each job and each network, and one for all. One that is full is forgotten.
// Thread-safe.
class JobEventLimits {
 public:
  // `clock` must outlive this object.
  JobEventLimits(JobEventLimitsOptions options, const Clock& clock);

  // Records from which network (NetworkOf) the first request about a job has come. Returns false
  // and does nothing if that is known already. The events of a job without a network count as its
  // own and as those of all.
  bool SetOrigin(const std::string& job, const std::string& network);
  void ForgetOrigin(const std::string& job);

  // Returns whether an event of the job, with texts of `bytes`, is logged. Counts it in either
  // case.
  bool Pass(const std::string& job, size_t bytes, bool is_essential);

  struct LeftOut {
    // The job, or the network, whose limit was reached. If both are empty, it was that of all jobs.
    std::string job;
    std::string network;
    uint64_t events = 0;
    // The limit.
    double at_once = 0;
    double each_second = 0;
  };
  // Returns the limits for which `report_after` has passed since an event was left out, each with
  // the number of these events, and counts from 0 again.
  std::vector<LeftOut> TakeDue();

  // The number of jobs that are not forgotten.
  size_t jobs() const;

 private:
  struct Bucket {
    // The events that may be logged at `updated`; negative if the reserve was used.
    double tokens = 0;
    absl::Time updated;
    uint64_t left_out = 0;
    // When `left_out` is to be reported. Undefined if it is 0.
    absl::Time due;
  };
  using Buckets = std::map<std::string, Bucket>;

  // In the following, `times` is how many times the numbers of a job a bucket has.
  Bucket NewBucket(double times, absl::Time now) const;
  void Refill(Bucket& bucket, double times, absl::Time now) const;
  // Returns whether the bucket has `cost`; otherwise counts an event that is left out.
  bool Has(Bucket& bucket, double times, double cost, bool is_essential, absl::Time now) const;
  // Returns whether nothing would change if the bucket was made anew.
  bool IsFresh(const Bucket& bucket, double times) const;
  // Returns the bucket of `name`, and forgets others if there are too many.
  Bucket& Find(Buckets& buckets, const std::string& name, double times, absl::Time now) const;

  const JobEventLimitsOptions options_;
  const Clock& clock_;

  mutable Mutex mutex_;
  Buckets jobs_ ABSL_GUARDED_BY(mutex_);
  Buckets networks_ ABSL_GUARDED_BY(mutex_);
  Bucket all_ ABSL_GUARDED_BY(mutex_);
  // The network of a job; and the jobs in the order in which they became known. The latter may
  // have jobs that were forgotten.
  std::map<std::string, std::string> origins_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_EVENTS_JOB_EVENT_LIMITS_H_
