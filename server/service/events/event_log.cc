#include "server/service/events/event_log.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/names.h"

namespace syncgrads::server {
namespace {

// Returns the memory that an event takes, roughly.
size_t BytesOf(const KeptEvent& kept) {
  return sizeof(KeptEvent) + kept.event.job.size() + kept.event.worker.size() +
         kept.event.text.size() + kept.event.detail.size();
}

// Returns whether the event begins or ends a job, whose other events cannot be understood without
// it.
bool IsEssential(EventKind kind) {
  return kind == EventKind::kOpened || kind == EventKind::kRestored || kind == EventKind::kClosed;
}

}  // namespace

void EventLog::Record(const Event& event) {
  const size_t bytes = std::min(event.text.size(), options_.max_text_bytes) +
                       std::min(event.detail.size(), options_.max_text_bytes);
  if (event.job.empty() || job_limits_.Pass(event.job, bytes, IsEssential(event.kind))) Keep(event);
  if (event.kind == EventKind::kClosed) job_limits_.ForgetOrigin(event.job);
}

void EventLog::ReportLeftOut() {
  for (const JobEventLimits::LeftOut& left_out : job_limits_.TakeDue()) {
    const std::string whose = !left_out.job.empty() ? absl::StrCat("job \"", left_out.job, "\"")
                              : !left_out.network.empty()
                                  ? absl::StrCat("jobs of ", left_out.network)
                                  : "all jobs";
    const absl::string_view who = !left_out.job.empty()       ? "a job"
                                  : !left_out.network.empty() ? "the jobs of one address"
                                                              : "all jobs together";
    Keep({.kind = EventKind::kLeftOut,
          .job = left_out.job,
          .text = absl::StrCat(whose, ": ", left_out.events, " more events were left out: ", who,
                               " may have ", left_out.at_once, " at once, and then ",
                               left_out.each_second, " a second"),
          .level = LogLevel::kWarning});
  }
}

void EventLog::Keep(const Event& event) {
  auto kept = std::make_shared<KeptEvent>();
  kept->event = event;
  kept->event.text = Printable(event.text, options_.max_text_bytes);
  kept->event.detail = Printable(event.detail, options_.max_text_bytes);
  {
    MutexLock lock(mutex_);
    // Under the lock, so that dates are in the order of the numbers.
    kept->date = options_.now();
    kept->number = next_++;
    bytes_ += BytesOf(*kept);
    kept_.push_back(std::move(kept));
    while (kept_.size() > 1 &&
           (kept_.size() > options_.max_events || bytes_ > options_.max_bytes)) {
      DiscardOldestLocked();
    }
    changed_.NotifyAll();
  }
  journal_.Record(event);
}

void EventLog::DiscardOldestLocked() {
  bytes_ -= BytesOf(*kept_.front());
  discarded_ = kept_.front()->number;
  discarded_date_ = kept_.front()->date;
  kept_.pop_front();
}

EventLog::Part EventLog::Read(uint64_t from, const std::string& job, size_t most) const {
  MutexLock lock(mutex_);
  Part part;
  if (from > next_) from = 0;
  from = std::max(from, uint64_t{1});
  if (from <= discarded_) {
    part.missed = discarded_ - from + 1;
    part.last_missed = discarded_;
    part.last_missed_date = discarded_date_;
    from = discarded_ + 1;
  }
  // The oldest event that is kept has the number discarded_ + 1.
  for (part.next = from; part.next < next_ && part.events.size() < most; ++part.next) {
    const std::shared_ptr<const KeptEvent>& kept = kept_[part.next - discarded_ - 1];
    if (job.empty() || kept->event.job == job) part.events.push_back(kept);
  }
  return part;
}

uint64_t EventLog::next() const {
  MutexLock lock(mutex_);
  return next_;
}

void EventLog::Await(uint64_t number, absl::Time deadline) {
  MutexLock lock(mutex_);
  while (next_ <= number && !woken_ && MonotonicNow() < deadline) {
    changed_.WaitUntil(mutex_, deadline);
  }
  woken_ = false;
}

void EventLog::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

}  // namespace syncgrads::server
