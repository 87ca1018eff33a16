#include "server/service/follower.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/service/signals.h"
#include "server/service/status.h"

namespace syncgrads::server {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& coordinator) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  // Notices a coordinator whose machine is gone.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  return grpc::CreateCustomChannel(coordinator, grpc::InsecureChannelCredentials(), arguments);
}

// Whether another attempt can do better.
bool IsPassing(const absl::Status& status) {
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

class Follower::Stream : public grpc::ClientBidiReactor<v1::ServerSignal, v1::PlanSignal> {
 public:
  explicit Stream(Follower& follower) : follower_(follower) {}

  // What is to be sent first, in order.
  void Start(const std::vector<v1::ServerSignal>& first) {
    follower_.stub_->async()->Follow(&context_, this);
    StartRead(&incoming_);
    for (const v1::ServerSignal& signal : first) Send(signal);
    StartCall();
  }

  // Those that come while one is being written go in one message.
  void Arrive(const Arrival& arrival) {
    MutexLock lock(mutex_);
    arrivals_.push_back(arrival);
    WriteNews();
  }
  void Reduced(const ReducedChunk& chunk) {
    MutexLock lock(mutex_);
    reduced_.push_back(chunk);
    WriteNews();
  }

  void Send(v1::ServerSignal signal) {
    MutexLock lock(mutex_);
    greeted_ = true;
    outgoing_.push_back(std::move(signal));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) follower_.OnReached();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    follower_.OnSignal(*this, incoming_);
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    if (!ok) return;  // the stream is over, and OnDone follows
    outgoing_.pop_front();
    TakeNews();
    if (!outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void WriteNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // Before the hello there is nothing under way, and nothing may be sent.
    if (!outgoing_.empty() || !greeted_) return;
    TakeNews();
    StartWrite(&outgoing_.front());
  }

  void TakeNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (v1::Arrived& arrived : ToProto(arrivals_)) {
      *outgoing_.emplace_back().mutable_arrived() = std::move(arrived);
    }
    arrivals_.clear();
    if (reduced_.empty()) return;
    *outgoing_.emplace_back().mutable_reduced() = ToProto(reduced_);
    reduced_.clear();
  }

  void OnDone(const grpc::Status& status) override { follower_.OnDone(FromGrpc(status)); }

  Follower& follower_;
  grpc::ClientContext context_;
  v1::PlanSignal incoming_;
  Mutex mutex_;
  // The front is being written.
  std::deque<v1::ServerSignal> outgoing_ ABSL_GUARDED_BY(mutex_);
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReducedChunk> reduced_ ABSL_GUARDED_BY(mutex_);
  bool greeted_ ABSL_GUARDED_BY(mutex_) = false;
};

Follower::Follower(FollowerOptions options, Jobs& jobs, const Clock& clock, Journal& journal)
    : coordinator_(std::move(options.coordinator)),
      patience_(options.patience),
      plan_(std::move(options.plan), jobs),
      jobs_(jobs),
      clock_(clock),
      journal_(journal),
      stub_(v1::Control::NewStub(ChannelTo(coordinator_))),
      backoff_(kFirstBackoff),
      lost_(clock.Now()) {}

Follower::~Follower() {
  MutexLock lock(mutex_);
  stopping_ = true;
  if (stream_ != nullptr) stream_->Cancel();
  while (stream_ != nullptr) ended_.WaitUntil(mutex_, absl::InfiniteFuture());
}

void Follower::Tick() {
  // Before there is one, the coordinator may not have been started yet.
  const bool has_plan = jobs_.applied() > 0;
  Stream* started = nullptr;
  {
    MutexLock lock(mutex_);
    spent_ = nullptr;
    if (status_.ok() && has_plan) status_ = CheckPatienceLocked();
    if (stream_ != nullptr || stopping_ || !status_.ok()) return;
    if (clock_.Now() < next_attempt_) return;
    stream_ = std::make_unique<Stream>(*this);
    started = stream_.get();
  }
  // What arrives from here on is told on this stream too, or is among these.
  started->Start(plan_.Greeting());
}

void Follower::Arrived(const Arrival& arrival) {
  MutexLock lock(mutex_);
  if (stream_ != nullptr) stream_->Arrive(arrival);
}

void Follower::Reduced(const ReducedChunk& chunk) {
  MutexLock lock(mutex_);
  if (stream_ != nullptr) stream_->Reduced(chunk);
}

absl::Status Follower::status() const {
  MutexLock lock(mutex_);
  return status_;
}

void Follower::OnReached() {
  MutexLock lock(mutex_);
  lost_ = absl::InfiniteFuture();
}

absl::Status Follower::CheckPatienceLocked() const {
  const absl::Duration away = clock_.Now() - lost_;
  if (away <= patience_) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "the coordinator at ", coordinator_, " has been out of reach for ",
      absl::FormatDuration(absl::Trunc(away, absl::Milliseconds(1))), "; after ",
      absl::FormatDuration(patience_), " no worker of its jobs waits for it any more"));
}

void Follower::OnSignal(Stream& stream, const v1::PlanSignal& signal) {
  absl::StatusOr<std::vector<v1::ServerSignal>> replies = plan_.Apply(signal);
  {
    MutexLock lock(mutex_);
    if (replies.ok()) backoff_ = kFirstBackoff;
    if (status_.ok()) status_ = replies.status();
  }
  if (!replies.ok()) return stream.Cancel();
  for (v1::ServerSignal& reply : *replies) stream.Send(std::move(reply));
}

void Follower::OnDone(const absl::Status& status) {
  MutexLock lock(mutex_);
  // gRPC still runs in it; it is freed at the next tick, or with this object.
  spent_ = std::move(stream_);
  next_attempt_ = clock_.Now() + backoff_;
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
  lost_ = std::min(lost_, clock_.Now());
  if (!stopping_) {
    const std::string line = absl::StrCat("the stream to the coordinator at ", coordinator_,
                                          " ended: ", status.ToString());
    if (absl::IsDataLoss(status)) {
      journal_.Warn(absl::StrCat(line, "; begins with nothing"));
      plan_.Forget();
    } else if (IsPassing(status)) {
      journal_.Note(line);
    } else {
      journal_.Warn(line);
      if (status_.ok()) status_ = status;
    }
  }
  ended_.NotifyAll();
}

}  // namespace syncgrads::server
