#include "server/service/calls/duplex_stream.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/trace/trace.h"

namespace syncgrads::server {

DuplexStream::DuplexStream(std::unique_ptr<StreamCall> call, StreamDeadlines& deadlines,
                           std::shared_ptr<UnreadBytes> unread, ControlThreads* threads)
    : call_(std::move(call)),
      deadlines_(deadlines),
      threads_(threads),
      unread_(std::move(unread)) {}

// The bytes are removed here, where no sender can call Enqueue any more.
DuplexStream::~DuplexStream() { unread_->Remove(own_unread_); }

void DuplexStream::Start() {
  {
    MutexLock lock(mutex_);
    deadline_ = deadlines_.AddWithoutHello(shared_from_this());
  }
  call_->Begin(shared_from_this());
  call_->Read(&incoming_);
}

void DuplexStream::Enqueue(const grpc::ByteBuffer& message, uint32_t place) {
  const size_t bytes = message.Length() + kUnreadOverhead;
  size_t unread, limit;
  std::optional<Waiting> written;  // destroyed without the lock
  {
    MutexLock lock(mutex_);
    if (finish_with_.has_value()) return;
    unread_->Add(bytes);
    own_unread_ += bytes;
    if (!writing_.has_value()) {
      if (WriteLocked({message, bytes})) written = WrittenLocked();
      return;
    }
    waiting_.emplace(place, Waiting{message, bytes});
    unread = UnreadLocked();
    limit = unread_->limit();
  }
  if (unread <= limit) return;
  CutWith(
      {grpc::StatusCode::RESOURCE_EXHAUSTED,
       absl::StrCat(unread, " bytes that the peer has not read are queued, the limit is ", limit)});
}

void DuplexStream::FinishAfterSending(grpc::Status status) {
  MutexLock lock(mutex_);
  EndLocked(std::move(status));
}

void DuplexStream::EndLocked(grpc::Status status) {
  if (finish_with_.has_value()) return;
  finish_with_ = std::move(status);
  // A peer that does not read must not keep the stream open: the end has a deadline too.
  deadlines_.Remove(this, deadline_);
  deadline_ = has_hello_ ? deadlines_.Add(shared_from_this())
                         : deadlines_.AddWithoutHello(shared_from_this());
  FinishLocked();
}

void DuplexStream::FinishLocked() {
  if (writing_.has_value() || handling_ || finished_) return;
  finished_ = true;
  call_->Finish(*finish_with_);
}

void DuplexStream::CutWith(const grpc::Status& status) {
  Queue dropped;
  {
    MutexLock lock(mutex_);
    if (cut_) return;
    cut_ = true;
    if (!finished_) finish_with_ = status;
    dropped = TakeWaitingLocked();
  }
  // The call is cancelled: Finish alone would wait until the peer has read all earlier messages.
  call_->Cancel(status);
  MutexLock lock(mutex_);
  FinishLocked();
}

bool DuplexStream::TakeFirst() {
  has_hello_ = true;
  {
    MutexLock lock(mutex_);
    if (!finish_with_.has_value()) {
      deadlines_.Remove(this, std::exchange(deadline_, absl::InfiniteFuture()));
    }
  }
  if (incoming_.Length() <= kMaxHelloBytes) return true;
  FinishAfterSending({grpc::StatusCode::RESOURCE_EXHAUSTED,
                      absl::StrCat("the first message has ", incoming_.Length(),
                                   " bytes, a hello has at most ", kMaxHelloBytes)});
  return false;
}

void DuplexStream::CountIn(std::shared_ptr<UnreadBytes> unread) {
  MutexLock lock(mutex_);
  unread->Add(own_unread_);
  unread_->Remove(own_unread_);
  unread_ = std::move(unread);
}

bool DuplexStream::HasUnread() const {
  MutexLock lock(mutex_);
  return own_unread_ > 0;
}

void DuplexStream::OnReadDone(bool ok) {
  if (!ok) {
    // The peer has closed its side or is unreachable: the waiting messages are dropped.
    Queue dropped;
    MutexLock lock(mutex_);
    dropped = TakeWaitingLocked();
    return EndLocked(grpc::Status::OK);
  }
  if (!has_hello_ && !TakeFirst()) return;
  if (threads_ != nullptr) return HandleOnThreads();
  OnMessage(incoming_);
  MutexLock lock(mutex_);
  ReadNextLocked();
}

void DuplexStream::HandleOnThreads() {
  {
    MutexLock lock(mutex_);
    handling_ = true;
  }
  threads_->Handle(WeightOf(incoming_), TurnsOf(), [this, self = shared_from_this()] {
    // The stream may have ended while the message waited for the thread.
    if (!HasEnded()) OnMessage(incoming_);
    MutexLock lock(mutex_);
    handling_ = false;
    if (finish_with_.has_value()) return FinishLocked();
    ReadNextLocked();
  });
}

bool DuplexStream::HasEnded() {
  MutexLock lock(mutex_);
  return finish_with_.has_value();
}

void DuplexStream::ReadNextLocked() {
  if (finish_with_.has_value()) return;
  if (!waiting_.empty() && UnreadLocked() >= unread_->pause_at()) {
    reading_paused_ = true;
  } else {
    call_->Read(&incoming_);
  }
}

void DuplexStream::OnWriteDone(bool ok) {
  std::vector<Waiting> written;
  Queue dropped;
  MutexLock lock(mutex_);
  written.push_back(WrittenLocked());
  if (!ok) dropped = TakeWaitingLocked();
  while (!waiting_.empty() && WriteLocked(std::move(waiting_.extract(waiting_.begin()).mapped()))) {
    written.push_back(WrittenLocked());
  }
  if (finish_with_.has_value() && waiting_.empty()) FinishLocked();
  ReadOnLocked();
}

DuplexStream::Waiting DuplexStream::WrittenLocked() {
  Waiting written = *std::exchange(writing_, std::nullopt);
  unread_->Remove(written.bytes);
  own_unread_ -= written.bytes;
  if (written.written_since != absl::InfinitePast()) {
    RecordTraceWait("write", written.written_since, MonotonicNow(),
                    TraceArgs::Bytes(written.bytes));
  }
  return written;
}

void DuplexStream::ReadOnLocked() {
  if (!reading_paused_ || finish_with_.has_value()) return;
  if (!waiting_.empty() && UnreadLocked() >= unread_->pause_at() / 2) return;
  reading_paused_ = false;
  call_->Read(&incoming_);
}

void DuplexStream::OnDone() {
  std::optional<Waiting> unwritten;  // destroyed without the lock
  {
    MutexLock lock(mutex_);
    deadlines_.Remove(this, deadline_);
    if (writing_.has_value()) unwritten = WrittenLocked();
  }
  std::shared_ptr<DuplexStream> self = shared_from_this();
  // Without a hello there is nothing to end.
  if (threads_ == nullptr || !has_hello_) return OnOver();
  threads_->End(TurnsOf(), [self = std::move(self)] { self->OnOver(); });
}

void DuplexStream::OnTimeout(absl::Duration time) {
  std::optional<grpc::Status> end;
  {
    MutexLock lock(mutex_);
    end = finish_with_;
  }
  if (end.has_value()) return CutWith(*end);
  if (has_hello_) return;
  CutWith({grpc::StatusCode::DEADLINE_EXCEEDED,
           absl::StrCat("no hello has arrived within ", absl::FormatDuration(time))});
}

bool DuplexStream::WriteLocked(Waiting message) {
  writing_ = std::move(message);
  if (IsTracing()) writing_->written_since = MonotonicNow();
  return call_->Write(&writing_->message);
}

DuplexStream::Queue DuplexStream::TakeWaitingLocked() {
  for (const auto& [place, waiting] : waiting_) {
    unread_->Remove(waiting.bytes);
    own_unread_ -= waiting.bytes;
  }
  return std::exchange(waiting_, {});
}

size_t DuplexStream::UnreadLocked() const {
  return unread_->total() - (writing_.has_value() ? writing_->bytes : 0);
}

}  // namespace syncgrads::server
