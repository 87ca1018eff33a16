#include "server/service/admin/event_streams.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/net/address.h"
#include "common/start_thread.h"
#include "common/status_macros.h"
#include "server/access/caller.h"

namespace syncgrads::server {
namespace {

constexpr char kStopping[] = "the server is shutting down";

uint64_t Milliseconds(absl::Time date) { return static_cast<uint64_t>(absl::ToUnixMillis(date)); }

void Fill(const KeptEvent& kept, ServerIndex self, bool with_details, v1::Event& out) {
  out.set_server(ToNumber(self));
  out.set_number(kept.number);
  out.set_date_ms(Milliseconds(kept.date));
  out.set_kind(ToString(kept.event.kind));
  out.set_job(kept.event.job);
  out.set_worker(kept.event.worker);
  out.set_warning(kept.event.level == LogLevel::kWarning);
  out.set_text(with_details ? absl::StrCat(kept.event.text, kept.event.detail) : kept.event.text);
}

v1::EventsReply ToProto(const EventLog::Part& part, ServerIndex self, bool with_details) {
  v1::EventsReply reply;
  if (part.missed > 0) {
    v1::Event& missed = *reply.add_events();
    missed.set_server(ToNumber(self));
    missed.set_number(part.last_missed);
    missed.set_date_ms(Milliseconds(part.last_missed_date));
    missed.set_kind("missed");
    missed.set_warning(true);
    missed.set_text(absl::StrCat(part.missed, " events are not kept any more"));
  }
  for (const auto& kept : part.events) Fill(*kept, self, with_details, *reply.add_events());
  return reply;
}

}  // namespace

v1::EventsReply NewestEvents(const EventLog& log, ServerIndex self, size_t most,
                             bool with_details) {
  const uint64_t next = log.next();
  EventLog::Part part = log.Read(next > most ? next - most : 1, /*job=*/"", most);
  part.missed = 0;  // older ones were not to be read
  return ToProto(part, self, with_details);
}

// One call. gRPC calls the methods On… on any of its threads; everything else is called on the
// thread of the EventStreams. Owned by the EventStreams and the call until OnDone.
class EventStreams::Stream : public RequestCall::Events {
 public:
  Stream(EventStreams& streams, RequestCall& call, std::string network,
         const v1::EventsRequest& request, EventsPermission permission, bool with_details)
      : streams_(streams),
        call_(call.shared_from_this()),
        network_(std::move(network)),
        job_(request.job()),
        follows_(request.follow()),
        permission_(std::move(permission)),
        with_details_(with_details),
        next_decision_(MonotonicNow() + streams.options_.permission_interval),
        next_(request.after() + 1) {}

  // The network of the caller. Thread-safe.
  const std::string& network() const { return network_; }

  // If nothing is being written, begins the next write, or ends the call. If a write takes too
  // long, cancels the call. Returns when to call this again, at the latest.
  absl::Time Advance(bool stopping) {
    if (finished_) return absl::InfiniteFuture();
    absl::Time write_deadline;
    bool over = false;
    {
      MutexLock lock(mutex_);
      write_deadline = write_deadline_;
      over = over_;
    }
    if (write_deadline != absl::InfiniteFuture()) return CancelFrom(write_deadline);
    if (over || stopping) return End(absl::UnavailableError(kStopping));
    if (const absl::Status permitted = DecideAgain(); !permitted.ok()) return End(permitted);
    const EventLog::Part part = streams_.log_.Read(next_, job_, streams_.options_.max_batch);
    next_ = part.next;
    if (part.missed > 0 || !part.events.empty()) {
      return Write(ToProto(part, streams_.self_, with_details_));
    }
    return follows_ ? next_decision_ : End(absl::OkStatus());
  }

 private:
  // PermissionDenied if the caller may not read the events any more.
  absl::Status DecideAgain() {
    if (MonotonicNow() < next_decision_) return absl::OkStatus();
    next_decision_ = MonotonicNow() + streams_.options_.permission_interval;
    const absl::StatusOr<bool> permitted = permission_();
    if (absl::IsPermissionDenied(permitted.status())) return permitted.status();
    // If it cannot be decided, the decision before stays.
    if (permitted.ok()) with_details_ = *permitted;
    return absl::OkStatus();
  }
  absl::Time CancelFrom(absl::Time deadline) {
    if (cancelled_) return absl::InfiniteFuture();
    if (MonotonicNow() < deadline) return deadline;
    cancelled_ = true;
    call_->Cancel({grpc::StatusCode::CANCELLED, "the events were not read in time"});
    return absl::InfiniteFuture();
  }
  absl::Time End(const absl::Status& status) {
    finished_ = true;
    call_->End(status);
    return absl::InfiniteFuture();
  }
  absl::Time Write(const v1::EventsReply& reply) {
    const absl::Time deadline = MonotonicNow() + streams_.options_.write_timeout;
    {
      MutexLock lock(mutex_);
      write_deadline_ = deadline;
    }
    call_->Write(reply);
    return deadline;
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      write_deadline_ = absl::InfiniteFuture();
      over_ = over_ || !ok;
    }
    streams_.log_.Wake();
  }
  void OnCancel() override {
    {
      MutexLock lock(mutex_);
      over_ = true;
    }
    streams_.log_.Wake();
  }
  void OnDone() override { streams_.Remove(this); }

  EventStreams& streams_;
  const std::shared_ptr<RequestCall> call_;
  const std::string network_;
  const std::string job_;
  const bool follows_;
  const EventsPermission permission_;
  bool with_details_;
  absl::Time next_decision_;
  uint64_t next_;
  bool cancelled_ = false;
  bool finished_ = false;

  Mutex mutex_;
  // InfiniteFuture if nothing is being written.
  absl::Time write_deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // True once the call was cancelled or its connection has broken.
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

EventStreams::~EventStreams() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    ending_ = true;
    thread = std::move(thread_);
  }
  log_.Wake();
  if (thread.joinable()) thread.join();
}

void EventStreams::Events(RequestCall& call, const v1::EventsRequest& request,
                          EventsPermission permission) {
  const absl::StatusOr<bool> permitted = permission();
  if (!permitted.ok()) return call.End(permitted.status());
  const auto stream =
      std::make_shared<Stream>(*this, call, NetworkOf(CallerOf(call.context()).peer), request,
                               std::move(permission), *permitted);
  // Before the thread may write.
  call.SetEvents(stream);
  const absl::Status added = Add(stream);
  if (!added.ok()) return call.End(added);
  log_.Wake();
}

absl::Status EventStreams::Add(std::shared_ptr<Stream> stream) {
  MutexLock lock(mutex_);
  if (stopping_) return absl::UnavailableError(kStopping);
  const auto refused = [](size_t streams, absl::string_view whose, size_t most) {
    return absl::ResourceExhaustedError(absl::StrCat("this server already sends its events to ",
                                                     streams, " callers", whose, ", of at most ",
                                                     most, ": retry when one of them has ended"));
  };
  if (streams_.size() >= options_.max_streams) {
    return refused(streams_.size(), "", options_.max_streams);
  }
  const auto of_network = static_cast<size_t>(absl::c_count_if(
      streams_, [&](const auto& one) { return one->network() == stream->network(); }));
  if (of_network >= options_.max_streams_of_network) {
    return refused(of_network, absl::StrCat(" of ", stream->network()),
                   options_.max_streams_of_network);
  }
  if (!thread_.joinable()) {
    SYNCGRADS_RETURN_IF_ERROR(StartThread("events", thread_, [this] { Run(); }));
  }
  streams_.push_back(std::move(stream));
  return absl::OkStatus();
}

void EventStreams::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  log_.Wake();
}

void EventStreams::Run() {
  while (true) {
    std::vector<std::shared_ptr<Stream>> streams;
    bool stopping = false;
    {
      MutexLock lock(mutex_);
      if (ending_) return;
      streams = streams_;
      stopping = stopping_;
    }
    // Read before the streams read the log: an event that is recorded meanwhile ends the wait.
    const uint64_t next = log_.next();
    absl::Time again = absl::InfiniteFuture();
    for (const std::shared_ptr<Stream>& stream : streams) {
      again = std::min(again, stream->Advance(stopping));
    }
    streams.clear();
    log_.Await(next, again);
  }
}

void EventStreams::Remove(const Stream* stream) {
  MutexLock lock(mutex_);
  std::erase_if(streams_, [stream](const auto& one) { return one.get() == stream; });
}

}  // namespace syncgrads::server
