#include "worker/data_service/row_stream.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstddef>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/names.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/parse_message.h"

namespace syncgrads {
namespace {

// How long the destructor waits for the server's end message.
constexpr absl::Duration kEndTimeout = absl::Seconds(5);
// What a server of gRPC answers while all its threads are busy.
constexpr char kNoThread[] = "Server Threadpool Exhausted";

// The maximum number of parts of a received message (ParseMessage): 1,000 classes of each of 4,096
// shards, and as many names of features. Parsed, they take about as much memory as its bytes may.
constexpr size_t kMostReplyParts = size_t{1} << 22;

std::shared_ptr<grpc::Channel> Connect(const std::string& address, const ChannelSecurity& security,
                                       int most_reply_bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(most_reply_bytes);
  // A small compressed message may become a very large one. Without decompression it is malformed.
  arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // With keepalive, a lost host is detected before a batch's timeout.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return security.Connect(address, arguments);
}

}  // namespace

class RowStream::Call : public ClientStream<grpc::ByteBuffer, v1::ServedDataRequest> {
 public:
  explicit Call(RowStream& owner) : owner_(owner) {
    // The call waits for a server that is not listening yet.
    context().set_wait_for_ready(true);
  }

  void Start(v1::ServedDataRequest open) {
    owner_.stub_.PrepareBidiStreamingCall(&context(), "/syncgrads.v1.ServedData/Serve",
                                          grpc::StubOptions(), this);
    std::deque<v1::ServedDataRequest> first;
    first.push_back(std::move(open));
    Begin(std::move(first));
  }

 private:
  void OnMessage(grpc::ByteBuffer& message) override {
    if (!owner_.OnReply(message)) Cancel();
    message.Clear();
  }
  void OnOver(const grpc::Status& status) override { owner_.OnOver(status); }

  RowStream& owner_;
};

RowStream::RowStream(std::string address, absl::Duration timeout, const ChannelSecurity& security,
                     int most_reply_bytes)
    : address_(std::move(address)),
      timeout_(timeout),
      channel_(Connect(address_, security, most_reply_bytes)),
      stub_(channel_) {}

RowStream::~RowStream() {
  if (call_ == nullptr) return;
  bool graceful = false;
  {
    MutexLock lock(mutex_);
    graceful = !done_.has_value() && refusal_.ok() && opened_.has_value() && answered_ == asked_;
  }
  if (graceful) {
    call_->FinishSending();
    const absl::Time deadline = MonotonicNow() + kEndTimeout;
    MutexLock lock(mutex_);
    while (!ended_ && refusal_.ok() && !done_.has_value() && changed_.WaitUntil(mutex_, deadline)) {
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
  return std::move(*opened_);
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

bool RowStream::OnReply(grpc::ByteBuffer& message) {
  v1::ServedDataReply reply;
  const absl::Status parsed = ParseMessage(message, kMostReplyParts, reply);
  MutexLock lock(mutex_);
  // After a message that is refused, nothing more is accepted from the server.
  if (refusal_.ok() && !parsed.ok()) refusal_ = absl::DataLossError(parsed.message());
  if (refusal_.ok() && !Keep(reply)) refusal_ = absl::DataLossError("a message out of order");
  changed_.NotifyAll();
  return refusal_.ok();
}

void RowStream::OnOver(const grpc::Status& status) {
  MutexLock lock(mutex_);
  done_ = status;
  changed_.NotifyAll();
}

absl::Status RowStream::Failure() const {
  const std::string who = absl::StrCat("data server ", address_, ": ");
  if (!refusal_.ok()) return absl::Status(refusal_.code(), who + std::string(refusal_.message()));
  if (done_->ok()) return absl::UnavailableError(who + "the stream has ended too early");
  if (done_->error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError(who + "the connection is lost");
  }
  if (done_->error_message() == kNoThread) {
    return absl::UnavailableError(who + "all its threads are busy");
  }
  // gRPC limits the length of the message.
  return absl::Status(static_cast<absl::StatusCode>(done_->error_code()),
                      who + Printable(done_->error_message(), done_->error_message().size()));
}

absl::Status RowStream::TimedOut(absl::string_view awaited) const {
  return absl::DeadlineExceededError(absl::StrCat("data server ", address_, " has not ", awaited,
                                                  " within ", absl::FormatDuration(timeout_)));
}

}  // namespace syncgrads
