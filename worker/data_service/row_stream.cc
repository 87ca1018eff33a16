#include "worker/data_service/row_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace syncgrads {
namespace {

// For the server's last word, when the worker has what it wants.
constexpr absl::Duration kEndTimeout = absl::Seconds(5);

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A host that is gone without a word is noticed before the timeout of a batch.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

RowStream::RowStream(std::string address, absl::Duration timeout)
    : address_(std::move(address)),
      timeout_(timeout),
      channel_(Connect(address_)),
      stub_(v1::ServedData::NewStub(channel_)) {
  // A server that is not there yet may still come.
  context_.set_wait_for_ready(true);
}

RowStream::~RowStream() {
  bool give_up_hold = false;
  {
    MutexLock lock(mutex_);
    if (!started_) return;
    const absl::Time deadline = absl::Now() + kEndTimeout;
    if (!closed_ && opened_.has_value() && answered_ == asked_) {
      finishing_ = true;
      if (!writing_) StartWritesDone();
      while (!ended_ && !closed_ && changed_.WaitUntil(mutex_, deadline)) {
      }
    }
    give_up_hold = !std::exchange(closed_, true);
  }
  if (give_up_hold) {
    context_.TryCancel();
    RemoveHold();
  }
  // Which comes soon, now that nothing is under way.
  MutexLock lock(mutex_);
  while (!done_.has_value()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
}

absl::StatusOr<v1::OpenedServedData> RowStream::Open(const v1::OpenServedData& request) {
  stub_->async()->Serve(&context_, this);
  AddHold();
  StartRead(&reply_);
  MutexLock lock(mutex_);
  started_ = true;
  v1::ServedDataRequest open;
  *open.mutable_open() = request;
  Send(std::move(open));
  StartCall();
  const absl::Time deadline = absl::Now() + timeout_;
  while (!opened_.has_value() && !done_.has_value()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return TimedOut("said which rows it has");
  }
  if (!opened_.has_value()) return Failure();
  return *opened_;
}

absl::StatusOr<uint64_t> RowStream::Ask(v1::AskForRows ask) {
  MutexLock lock(mutex_);
  // Why, it says to whoever takes; but then there may be nobody.
  if (closed_ && done_.has_value()) return Failure();
  const uint64_t number = asked_++;
  v1::ServedDataRequest request;
  *request.mutable_ask() = std::move(ask);
  Send(std::move(request));
  return number;
}

absl::StatusOr<v1::RowsAskedFor> RowStream::Take(uint64_t number) {
  MutexLock lock(mutex_);
  const absl::Time deadline = absl::Now() + timeout_;
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

void RowStream::Send(v1::ServedDataRequest request) {
  if (closed_) return;
  to_write_.push_back(std::move(request));
  if (!writing_) WriteNext();
}

void RowStream::WriteNext() {
  writing_ = true;
  StartWrite(&to_write_.front());
}

void RowStream::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  to_write_.pop_front();
  writing_ = false;
  if (!ok || closed_) return;  // the reading side finds out why
  if (!to_write_.empty()) {
    WriteNext();
  } else if (finishing_) {
    StartWritesDone();
  }
}

bool RowStream::Keep(v1::ServedDataReply reply) {
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

void RowStream::OnReadDone(bool ok) {
  bool give_up_hold = false;
  {
    MutexLock lock(mutex_);
    if (ok && Keep(std::move(reply_))) {
      changed_.NotifyAll();
      reply_.Clear();
    } else {
      if (ok) context_.TryCancel();
      ok = false;
      give_up_hold = !std::exchange(closed_, true);
      changed_.NotifyAll();
    }
  }
  if (ok) {
    StartRead(&reply_);
  } else if (give_up_hold) {
    RemoveHold();
  }
}

void RowStream::OnDone(const grpc::Status& status) {
  MutexLock lock(mutex_);
  closed_ = true;
  done_ = status;
  changed_.NotifyAll();
}

absl::Status RowStream::Failure() const {
  const std::string who = absl::StrCat("data server ", address_, ": ");
  if (done_->ok()) return absl::UnavailableError(who + "it has ended in the middle");
  if (done_->error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError(who + "it is gone");
  }
  return absl::Status(static_cast<absl::StatusCode>(done_->error_code()),
                      who + done_->error_message());
}

absl::Status RowStream::TimedOut(absl::string_view awaited) const {
  return absl::DeadlineExceededError(absl::StrCat("data server ", address_, " has not ", awaited,
                                                  " within ", absl::FormatDuration(timeout_)));
}

}  // namespace syncgrads
