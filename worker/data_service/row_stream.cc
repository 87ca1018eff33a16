#include "worker/data_service/row_stream.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/rpc/client_stream.h"

namespace syncgrads {
namespace {

// How long the destructor waits for the server's end message.
constexpr absl::Duration kEndTimeout = absl::Seconds(5);
// What a server of gRPC answers while all its threads are busy.
constexpr char kNoThread[] = "Server Threadpool Exhausted";

std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                       const ChannelSecurity& security) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // With keepalive, a lost host is detected before a batch's timeout.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return security.Connect(address, arguments);
}

}  // namespace

class RowStream::Call : public ClientStream<v1::ServedDataReply, v1::ServedDataRequest> {
 public:
  explicit Call(RowStream& owner) : owner_(owner) {
    // The call waits for a server that is not listening yet.
    context().set_wait_for_ready(true);
  }

  void Start(v1::ServedDataRequest open) {
    owner_.stub_->async()->Serve(&context(), this);
    std::deque<v1::ServedDataRequest> first;
    first.push_back(std::move(open));
    Begin(std::move(first));
  }

 private:
  void OnMessage(v1::ServedDataReply& reply) override {
    if (!owner_.OnReply(reply)) Cancel();
    reply.Clear();
  }
  void OnOver(const grpc::Status& status) override { owner_.OnOver(status); }

  RowStream& owner_;
};

RowStream::RowStream(std::string address, absl::Duration timeout, const ChannelSecurity& security)
    : address_(std::move(address)),
      timeout_(timeout),
      channel_(Connect(address_, security)),
      stub_(v1::ServedData::NewStub(channel_)) {}

RowStream::~RowStream() {
  if (call_ == nullptr) return;
  bool graceful = false;
  {
    MutexLock lock(mutex_);
    graceful = !done_.has_value() && !refused_ && opened_.has_value() && answered_ == asked_;
  }
  if (graceful) {
    call_->FinishSending();
    const absl::Time deadline = MonotonicNow() + kEndTimeout;
    MutexLock lock(mutex_);
    while (!ended_ && !refused_ && !done_.has_value() && changed_.WaitUntil(mutex_, deadline)) {
    }
  }
  // The call ends soon after this. The reaper waits for its end, and for other references to it.
  call_->Cancel();
  call_ = nullptr;
}

absl::StatusOr<v1::OpenedServedData> RowStream::Open(const v1::OpenServedData& request) {
  v1::ServedDataRequest open;
  *open.mutable_open() = request;
  call_ = reaper_.Make<Call>(*this);
  call_->Start(std::move(open));
  MutexLock lock(mutex_);
  const absl::Time deadline = MonotonicNow() + timeout_;
  while (!opened_.has_value() && !done_.has_value()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return TimedOut("reported its rows");
  }
  if (!opened_.has_value()) return Failure();
  return *opened_;
}

absl::StatusOr<uint64_t> RowStream::Ask(v1::AskForRows ask) {
  v1::ServedDataRequest request;
  *request.mutable_ask() = std::move(ask);
  // The lock is held while sending, so that requests are sent in the order of their numbers.
  MutexLock lock(mutex_);
  // Returns the error here too: after a failure, the caller may never call Take.
  if (done_.has_value()) return Failure();
  call_->Send(std::move(request));
  return asked_++;
}

absl::StatusOr<v1::RowsAskedFor> RowStream::Take(uint64_t number) {
  MutexLock lock(mutex_);
  const absl::Time deadline = MonotonicNow() + timeout_;
  while (answers_.count(number) == 0 && !done_.has_value()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return TimedOut("sent a batch");
  }
  const auto it = answers_.find(number);
  if (it == answers_.end()) return Failure();
  v1::RowsAskedFor rows = std::move(it->second);
  answers_.erase(it);
  return rows;
}

void RowStream::Forget(uint64_t number) {
  MutexLock lock(mutex_);
  if (answers_.erase(number) == 0) forgotten_.insert(number);
}

bool RowStream::Keep(v1::ServedDataReply& reply) {
  if (reply.has_opened() && !opened_.has_value()) {
    opened_ = std::move(*reply.mutable_opened());
    return true;
  }
  if (reply.has_rows() && answered_ < asked_) {
    const uint64_t number = answered_++;
    if (forgotten_.erase(number) == 0) answers_.emplace(number, std::move(*reply.mutable_rows()));
    return true;
  }
  ended_ = reply.has_end() && reply.end().batches() == asked_;
  return ended_;
}

bool RowStream::OnReply(v1::ServedDataReply& reply) {
  MutexLock lock(mutex_);
  // After an unexpected message, nothing more is accepted from the server.
  if (!refused_) refused_ = !Keep(reply);
  changed_.NotifyAll();
  return !refused_;
}

void RowStream::OnOver(const grpc::Status& status) {
  MutexLock lock(mutex_);
  done_ = status;
  changed_.NotifyAll();
}

absl::Status RowStream::Failure() const {
  const std::string who = absl::StrCat("data server ", address_, ": ");
  if (done_->ok()) return absl::UnavailableError(who + "the stream has ended too early");
  if (done_->error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError(who + "the connection is lost");
  }
  if (done_->error_message() == kNoThread) {
    return absl::UnavailableError(who + "all its threads are busy");
  }
  return absl::Status(static_cast<absl::StatusCode>(done_->error_code()),
                      who + done_->error_message());
}

absl::Status RowStream::TimedOut(absl::string_view awaited) const {
  return absl::DeadlineExceededError(absl::StrCat("data server ", address_, " has not ", awaited,
                                                  " within ", absl::FormatDuration(timeout_)));
}

}  // namespace syncgrads
