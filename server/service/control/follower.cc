#include "server/service/control/follower.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel_arguments.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/status.h"
#include "server/service/control/signals.h"

namespace syncgrads::server {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);
constexpr absl::Duration kLoadInterval = absl::Seconds(1);

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& coordinator,
                                         const ChannelSecurity& security) {
  // An attempt includes the handshake of TLS, which takes long on a busy host.
  const absl::Duration attempt =
      security.is_encrypted() ? absl::Seconds(2) : absl::Milliseconds(50);
  return security.Connect(coordinator, OwnConnection({.attempt = attempt,
                                                      .first_pause = absl::Milliseconds(50),
                                                      .keepalive = absl::Seconds(5)}));
}

// Whether a retry may succeed.
bool IsTransient(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return false;
    default:
      return true;
  }
}

}  // namespace

// One Follow stream to the coordinator. Arrivals and norms are batched: those that are reported
// while messages are being sent go into one message. Thread-safe.
class Follower::Stream : public ClientStream<v1::PlanSignal, v1::ServerSignal> {
 public:
  explicit Stream(Follower& follower) : follower_(follower) {}

  // Starts the call and sends the messages `first`, in order, before all others.
  void Start(std::vector<v1::ServerSignal> first) {
    {
      MutexLock lock(mutex_);
      unsent_ = first.size();
      greeted_ = true;
    }
    follower_.stub_->async()->Follow(&context(), this);
    Begin({std::make_move_iterator(first.begin()), std::make_move_iterator(first.end())});
  }

  // Queues a report for the next batch, and sends the batch if no message is being sent.
  void Arrive(const Arrival& arrival) {
    {
      MutexLock lock(mutex_);
      arrivals_.push_back(arrival);
    }
    SendNews();
  }
  void Reduce(const ReducedChunk& chunk) {
    {
      MutexLock lock(mutex_);
      reduced_.push_back(chunk);
    }
    SendNews();
  }

  // Sends a message after those that were sent before it.
  void SendSignal(v1::ServerSignal signal) {
    {
      MutexLock lock(mutex_);
      ++unsent_;
    }
    Send(std::move(signal));
  }

 private:
  // Private: callers must count the message in `unsent_`.
  using ClientStream::Send;

  void OnReached() override { follower_.OnReached(); }
  void OnMessage(v1::PlanSignal& signal) override {
    // Another thread may be about to call OnReached for this stream. Until it has, Tick must not
    // see both an applied change and an unreachable coordinator.
    follower_.OnReached();
    follower_.plan_thread_.Run([this, self = shared_from_this(), signal = std::move(signal)] {
      follower_.OnSignal(*this, signal);
      ReadNext();
    });
  }
  bool ReadsOnRequest() const override { return true; }
  void OnSent() override {
    {
      MutexLock lock(mutex_);
      --unsent_;
    }
    SendNews();
  }
  void OnOver(const grpc::Status& status) override {
    follower_.plan_thread_.Run(
        [&follower = follower_, status = FromGrpc(status)] { follower.OnOver(status); });
  }

  void SendNews() {
    std::vector<v1::ServerSignal> news;
    {
      MutexLock lock(mutex_);
      // Reports that were queued before the greeting are sent after it.
      if (!greeted_ || unsent_ > 0) return;
      news = TakeNewsLocked();
      unsent_ = news.size();
    }
    for (v1::ServerSignal& signal : news) Send(std::move(signal));
  }

  std::vector<v1::ServerSignal> TakeNewsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<v1::ServerSignal> news;
    for (v1::Arrived& arrived : ToProto(arrivals_)) {
      *news.emplace_back().mutable_arrived() = std::move(arrived);
    }
    arrivals_.clear();
    if (reduced_.empty()) return news;
    *news.emplace_back().mutable_reduced() = ToProto(reduced_);
    reduced_.clear();
    return news;
  }

  Follower& follower_;
  Mutex mutex_;
  // Start was called.
  bool greeted_ ABSL_GUARDED_BY(mutex_) = false;
  // The number of messages that were passed to Send and are not sent yet.
  size_t unsent_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReducedChunk> reduced_ ABSL_GUARDED_BY(mutex_);
};

Follower::Follower(FollowerOptions options, Jobs& jobs, const Clock& clock, Journal& journal)
    : coordinator_(std::move(options.coordinator)),
      coordinator_timeout_(options.coordinator_timeout),
      load_(std::move(options.load)),
      plan_(std::move(options.plan), jobs),
      jobs_(jobs),
      clock_(clock),
      journal_(journal),
      stub_(v1::Control::NewStub(ChannelTo(coordinator_, options.security))),
      backoff_(kFirstBackoff),
      lost_(clock.Now()) {}

Follower::~Follower() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stream = std::move(stream_);
  }
  if (stream != nullptr) stream->Cancel();
}

void Follower::Tick() {
  Connect();
  if (load_ == nullptr || clock_.Now() < next_load_ || !coordinator_reached()) return;
  const std::shared_ptr<Stream> open = stream();
  if (open == nullptr) return;
  next_load_ = clock_.Now() + kLoadInterval;
  v1::ServerSignal signal = plan_.Applied();
  *signal.mutable_load() = load_();
  open->SendSignal(std::move(signal));
}

void Follower::Connect() {
  // The timeout applies only once this server has applied a change: before that, the coordinator
  // may not have been started yet.
  const bool has_plan = jobs_.applied() > 0;
  std::shared_ptr<Stream> started;
  {
    MutexLock lock(mutex_);
    if (status_.ok() && has_plan) status_ = CheckCoordinatorTimeoutLocked();
    if (stream_ != nullptr || stopping_ || !status_.ok()) return;
    if (clock_.Now() < next_attempt_) return;
    stream_ = reaper_.Make<Stream>(*this);
    started = stream_;
  }
  // No report is lost: one that is made from here on is queued on this stream, and all earlier
  // ones are in the greeting.
  started->Start(plan_.Greeting());
}

std::shared_ptr<Follower::Stream> Follower::stream() const {
  MutexLock lock(mutex_);
  return stream_;
}

void Follower::Arrived(const Arrival& arrival) {
  if (const std::shared_ptr<Stream> open = stream()) open->Arrive(arrival);
}

void Follower::Reduced(const ReducedChunk& chunk) {
  if (const std::shared_ptr<Stream> open = stream()) open->Reduce(chunk);
}

void Follower::Prepared(const GroupPrepared& prepared) {
  if (const std::shared_ptr<Stream> open = stream()) open->SendSignal(ToProto(prepared));
}

void Follower::StoreFailed(const StoreFailure& failure) {
  if (const std::shared_ptr<Stream> open = stream()) open->SendSignal(ToProto(failure));
}

absl::Status Follower::status() const {
  MutexLock lock(mutex_);
  return status_;
}

void Follower::OnReached() {
  MutexLock lock(mutex_);
  lost_ = absl::InfiniteFuture();
}

absl::Status Follower::CheckCoordinatorTimeoutLocked() const {
  const absl::Duration away = clock_.Now() - lost_;
  if (away <= coordinator_timeout_) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("the coordinator at ", coordinator_, " has been unreachable for ",
                   absl::FormatDuration(absl::Trunc(away, absl::Milliseconds(1))), "; after ",
                   absl::FormatDuration(coordinator_timeout_),
                   " the workers of its jobs no longer wait for it"));
}

void Follower::OnSignal(Stream& stream, const v1::PlanSignal& signal) {
  absl::StatusOr<std::vector<v1::ServerSignal>> replies = plan_.Apply(signal);
  {
    MutexLock lock(mutex_);
    if (replies.ok()) backoff_ = kFirstBackoff;
    if (status_.ok()) status_ = replies.status();
  }
  if (!replies.ok()) return stream.Cancel();
  for (v1::ServerSignal& reply : *replies) stream.SendSignal(std::move(reply));
}

void Follower::OnOver(const absl::Status& status) {
  // Declared before the lock, so that the last reference is dropped without it.
  std::shared_ptr<Stream> over;
  MutexLock lock(mutex_);
  over = std::move(stream_);
  next_attempt_ = clock_.Now() + backoff_;
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
  lost_ = std::min(lost_, clock_.Now());
  if (!stopping_) {
    const std::string line = absl::StrCat("the stream to the coordinator at ", coordinator_,
                                          " ended: ", status.ToString());
    if (absl::IsDataLoss(status)) {
      journal_.Warn(absl::StrCat(line, "; this server discards its state"));
      plan_.Forget();
    } else if (IsTransient(status)) {
      journal_.Note(line);
    } else {
      journal_.Warn(line);
      if (status_.ok()) status_ = status;
    }
  }
}

}  // namespace syncgrads::server
