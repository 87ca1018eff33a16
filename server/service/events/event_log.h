// The newest events of a server, which Admin.Events returns.

#ifndef SYNCGRADS_SERVER_SERVICE_EVENTS_EVENT_LOG_H_
#define SYNCGRADS_SERVER_SERVICE_EVENTS_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/core/plan/journal.h"
#include "server/service/events/job_event_limits.h"

namespace syncgrads::server {

struct EventLogOptions {
  // The limits of what is kept. Beyond them, the oldest events are discarded; the newest one stays.
  size_t max_events = 1000;
  size_t max_bytes = 1 << 20;
  // A longer text or detail is truncated.
  size_t max_text_bytes = 8 << 10;
  // Returns the date of an event. Called by Record.
  std::function<absl::Time()> now = absl::Now;
  // The limits of the events of each job, and the clock that they are measured with, which must
  // outlive the log.
  JobEventLimitsOptions job_limits = {};
  const Clock& clock = Clock::Real();
};

struct KeptEvent {
  // From 1.
  uint64_t number = 0;
  absl::Time date;
  Event event;
};

// A journal that passes everything on to another one, and keeps the newest events. Control
// characters in their texts and details are escaped. If a job, the jobs of one network, or all jobs
// have more events than their limits allow, further ones are neither kept nor passed on, but
// counted; those of the server are not limited. Thread-safe. Record does not block: it waits only
// for other threads that add or copy pointers.
class EventLog : public Journal {
 public:
  // `journal` must outlive this object.
  explicit EventLog(Journal& journal, EventLogOptions options = {})
      : journal_(journal),
        options_(std::move(options)),
        job_limits_(options_.job_limits, options_.clock) {}

  void Debug(const std::string& line) override { journal_.Debug(line); }
  void Note(const std::string& line) override { journal_.Note(line); }
  void Warn(const std::string& line) override { journal_.Warn(line); }
  void WarnAbout(const std::string& job, const std::string& line) override {
    if (job_limits_.Pass(job, line.size(), /*is_essential=*/false)) journal_.Warn(line);
  }
  void Record(const Event& event) override;
  // See JobEventLimits. An origin is forgotten when the job is closed.
  bool SetOrigin(const std::string& job, const std::string& network) {
    return job_limits_.SetOrigin(job, network);
  }
  void ForgetOrigin(const std::string& job) { job_limits_.ForgetOrigin(job); }
  // Records for each limit how many of its events were left out, if that is due. Call it about once
  // a second.
  void ReportLeftOut();

  struct Part {
    // In order of their numbers.
    std::vector<std::shared_ptr<const KeptEvent>> events;
    // The number of events before them that were to be read and are not kept any more, of all jobs,
    // and the number and the date of the last one of these.
    uint64_t missed = 0;
    uint64_t last_missed = 0;
    absl::Time last_missed_date;
    // Where the next part begins.
    uint64_t next = 0;
  };
  // Returns at most `most` events with the number `from` or a greater one, and only those of `job`
  // unless it is empty. If `from` is greater than the number that the next event will have, reads
  // from the oldest event on.
  Part Read(uint64_t from, const std::string& job, size_t most) const;

  // The number that the next event will have.
  uint64_t next() const;
  // Waits until there is an event with this number, until Wake is called, or until the deadline.
  // Called by one thread at a time.
  void Await(uint64_t number, absl::Time deadline);
  // Ends the wait that is in progress, or the next one.
  void Wake();

 private:
  // Records an event whatever the limits.
  void Keep(const Event& event);
  void DiscardOldestLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Journal& journal_;
  const EventLogOptions options_;
  JobEventLimits job_limits_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<const KeptEvent>> kept_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // The number and the date of the newest event that was discarded.
  uint64_t discarded_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time discarded_date_ ABSL_GUARDED_BY(mutex_);
  // The number of the next event.
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_EVENTS_EVENT_LOG_H_
