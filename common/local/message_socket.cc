#include "common/local/message_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/local/socket_loop.h"

namespace syncgrads {
namespace {

// The maximum number of pieces that are passed to the kernel at once.
constexpr size_t kMostParts = 64;
// How many messages of one socket the loop handles before other sockets have their turn. A thread
// that polls looks after each message whether it may end.
constexpr int kMessagesAtOnce = 64;
// In calls of Tick: how long a server may take to say that it is ready; after how long it is sent a
// ping, and how long it may take to answer; and how long a client may take to send the rest of a
// message.
constexpr int kMostToReady = 5;
constexpr int kQuietUntilPing = 10;
constexpr int kMostToPong = 10;
constexpr int kMostToComplete = 30;

}  // namespace

MessageSocket::Outgoing::Outgoing(MessageKind kind,
                                  absl::Span<const absl::Span<const std::byte>> body,
                                  std::shared_ptr<const void> memory)
    : kind(kind), memory(std::move(memory)) {
  size_t length = 0;
  for (const absl::Span<const std::byte>& piece : body) {
    length += piece.size();
    if (!piece.empty()) this->body.push_back(piece);
  }
  header = EncodeMessageHeader(kind, static_cast<uint32_t>(length));
}

MessageSocket::Outgoing MessageSocket::EndOf(const absl::Status& status) {
  auto text = std::make_shared<const std::string>(EncodeEnd(status));
  const absl::Span<const std::byte> body(reinterpret_cast<const std::byte*>(text->data()),
                                         text->size());
  return Outgoing(MessageKind::kEnd, absl::MakeConstSpan(&body, 1), std::move(text));
}

void MessageSocket::Start(SocketLoop& loop, std::shared_ptr<Events> events) {
  events_ = std::move(events);
  const uint64_t number = loop.NewNumber();
  {
    MutexLock lock(mutex_);
    loop_ = &loop;
    number_ = number;
    if (side_ == Side::kServer) {
      queue_.emplace_back(MessageKind::kReady, absl::Span<const absl::Span<const std::byte>>(),
                          nullptr);
    }
  }
  // The new socket is writable, or was shut down by Cancel, so the loop calls Handle.
  loop.Add(number, descriptor_, shared_from_this());
}

void MessageSocket::ReadNext() {
  MutexLock lock(mutex_);
  reads_ = true;
  ArmLocked();
}

bool MessageSocket::Write(absl::Span<const absl::Span<const std::byte>> pieces,
                          std::shared_ptr<const void> memory) {
  Outgoing outgoing(MessageKind::kMessage, pieces, std::move(memory));
  MutexLock lock(mutex_);
  if (closing_.has_value()) return false;
  if (queue_.empty() && may_send_ && SendLocked(outgoing)) return true;
  queue_.push_back(std::move(outgoing));
  ArmLocked();
  return false;
}

void MessageSocket::End(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (closing_.has_value()) return;
  queue_.push_back(EndOf(status));
  // The loop sends it: OnClosed must not come from within this call.
  looks_again_ = true;
  ArmLocked();
}

void MessageSocket::Cancel(const absl::Status& status) {
  MutexLock lock(mutex_);
  CancelLocked(status);
  ArmLocked();
}

void MessageSocket::CancelLocked(const absl::Status& status) {
  if (closing_.has_value()) return;
  const bool is_between_messages = queue_.empty() || (queue_.front().sent_of_header == 0);
  if (side_ == Side::kServer && is_between_messages) {
    Outgoing end = EndOf(status);
    SendLocked(end);
  }
  CloseLocked(status);
}

void MessageSocket::CloseLocked(const absl::Status& status) {
  if (closing_.has_value()) return;
  closing_ = status;
  // Wakes the loop even if there is no room in the socket. What was sent can still be read.
  shutdown(descriptor_, SHUT_RDWR);
}

void MessageSocket::ArmLocked() {
  if (loop_ == nullptr || is_handling_ || holds_ > 0 || !socket_.valid()) return;
  uint32_t events = 0;
  if (reads_) events |= EPOLLIN;
  const bool waits_for_room = !queue_.empty() && may_send_ && !is_broken_;
  if (waits_for_room || closing_.has_value() || (reads_ && has_more_)) events |= EPOLLOUT;
  if (events != 0) loop_->Arm(number_, descriptor_, events);
}

bool MessageSocket::Hold() {
  MutexLock lock(mutex_);
  if (!has_received_ || closing_.has_value()) return false;
  if (++holds_ == 1) loop_->Arm(number_, descriptor_, 0);
  return true;
}

void MessageSocket::Release() {
  MutexLock lock(mutex_);
  if (--holds_ == 0) ArmLocked();
}

void MessageSocket::Handle(Caller caller) {
  {
    MutexLock lock(mutex_);
    looks_again_ = true;
    if (is_handling_) return;
    is_handling_ = true;
  }
  while (true) {
    Sent sent;  // destroyed without the lock
    bool has_written = false;
    {
      MutexLock lock(mutex_);
      if (!std::exchange(looks_again_, false)) {
        if (closing_.has_value() && caller == Caller::kLoop) break;
        is_handling_ = false;
        if (closing_.has_value()) return loop_->Arm(number_, descriptor_, EPOLLIN | EPOLLOUT);
        return ArmLocked();
      }
      has_written = FlushLocked(sent);
    }
    sent.clear();
    if (has_written) events_->OnWritten();
    Receive(caller == Caller::kLoop ? kMessagesAtOnce : 1);
  }
  Close();
}

bool MessageSocket::FlushLocked(Sent& sent) {
  bool has_written = false;
  while (may_send_ && !is_broken_ && !closing_.has_value() && !queue_.empty() &&
         SendLocked(queue_.front())) {
    const MessageKind kind = queue_.front().kind;
    if (kind == MessageKind::kMessage) has_written = true;
    if (kind == MessageKind::kPing || kind == MessageKind::kPong) signal_is_queued_ = false;
    if (kind == MessageKind::kEnd) {
      const auto& body = queue_.front().body.front();
      CloseLocked(DecodeEnd(body));
    }
    sent.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return has_written;
}

bool MessageSocket::SendLocked(Outgoing& outgoing) {
  while (!is_broken_) {
    iovec parts[kMostParts];
    size_t count = 0;
    const auto add = [&](const std::byte* begin, size_t size) {
      parts[count++] = {const_cast<std::byte*>(begin), size};
    };
    if (outgoing.sent_of_header < kMessageHeaderBytes) {
      add(outgoing.header.data() + outgoing.sent_of_header,
          kMessageHeaderBytes - outgoing.sent_of_header);
    }
    size_t skipped = outgoing.sent_of_piece;
    for (size_t i = outgoing.sent_pieces; i < outgoing.body.size() && count < kMostParts; ++i) {
      add(outgoing.body[i].data() + skipped, outgoing.body[i].size() - skipped);
      skipped = 0;
    }
    if (count == 0) return true;
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t result = sendmsg(descriptor_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return false;
      is_broken_ = true;
      // A client's end still reads why the server has closed the socket.
      if (side_ == Side::kServer) {
        CloseLocked(absl::UnavailableError(
            absl::StrCat("cannot write to the unix socket: ", std::strerror(errno))));
      }
      return false;
    }
    auto sent = static_cast<size_t>(result);
    const size_t of_header = std::min(sent, kMessageHeaderBytes - outgoing.sent_of_header);
    outgoing.sent_of_header += of_header;
    sent -= of_header;
    while (outgoing.sent_pieces < outgoing.body.size()) {
      const size_t left = outgoing.body[outgoing.sent_pieces].size() - outgoing.sent_of_piece;
      if (sent < left) {
        outgoing.sent_of_piece += sent;
        break;
      }
      sent -= left;
      ++outgoing.sent_pieces;
      outgoing.sent_of_piece = 0;
    }
  }
  return false;
}

void MessageSocket::SignalLocked(MessageKind kind) {
  if (std::exchange(signal_is_queued_, true)) return;
  // Sent when the loop calls Handle again, after others have had their turn.
  queue_.emplace_back(kind, absl::Span<const absl::Span<const std::byte>>(), nullptr);
}

void MessageSocket::Receive(int most) {
  bool has_all = false;
  for (int handled = 0;;) {
    {
      MutexLock lock(mutex_);
      if (closing_.has_value()) return;
      const bool is_enough = !reads_ || handled == most;
      has_more_ = is_enough && reader_.has_bytes();
      if (is_enough) return;
    }
    absl::StatusOr<std::optional<MessageReader::Message>> next = reader_.Next();
    if (!next.ok()) {
      MutexLock lock(mutex_);
      return CancelLocked(next.status());
    }
    if (next->has_value()) {
      ++handled;
      {
        MutexLock lock(mutex_);
        quiet_ticks_ = 0;
        awaits_rest_ = false;
        if ((*next)->kind != MessageKind::kMessage) {
          const absl::Status taken = TakeLocked(**next);
          if (!taken.ok()) CancelLocked(taken);
          continue;
        }
        reads_ = false;
      }
      events_->OnMessage(**std::move(next));
      MutexLock lock(mutex_);
      has_received_ = true;
      continue;
    }
    const absl::Span<std::byte> space = reader_.Space();
    // There was less than was asked for: no more has arrived.
    if (std::exchange(has_all, false)) return AwaitRest();
    const ssize_t result = recv(descriptor_, space.data(), space.size(), MSG_DONTWAIT);
    if (result > 0) {
      reader_.Filled(static_cast<size_t>(result));
      has_all = static_cast<size_t>(result) < space.size();
    } else if (result == 0) {
      MutexLock lock(mutex_);
      return CloseLocked(absl::UnavailableError("the other end has closed the unix socket"));
    } else if (errno == EAGAIN) {
      return AwaitRest();
    } else if (errno != EINTR) {
      MutexLock lock(mutex_);
      return CloseLocked(absl::UnavailableError(
          absl::StrCat("cannot read from the unix socket: ", std::strerror(errno))));
    }
  }
}

void MessageSocket::AwaitRest() {
  MutexLock lock(mutex_);
  awaits_rest_ = reader_.has_bytes();
}

absl::Status MessageSocket::TakeLocked(const MessageReader::Message& message) {
  const bool is_client = side_ == Side::kClient;
  if (is_client && message.kind == MessageKind::kReady && !may_send_) {
    may_send_ = true;
    looks_again_ = true;
    return absl::OkStatus();
  }
  if (is_client && message.kind == MessageKind::kEnd) return DecodeEnd(message.body());
  if (is_client && message.kind == MessageKind::kPong) return absl::OkStatus();
  if (!is_client && message.kind == MessageKind::kPing) {
    SignalLocked(MessageKind::kPong);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a ", is_client ? "server" : "client", " has sent a message of kind ",
                   static_cast<uint32_t>(message.kind), " on a local stream"));
}

void MessageSocket::Tick() {
  MutexLock lock(mutex_);
  if (closing_.has_value() || (side_ == Side::kServer && !awaits_rest_)) return;
  ++quiet_ticks_;
  if (side_ == Side::kServer) {
    if (quiet_ticks_ <= kMostToComplete) return;
    CancelLocked(absl::UnavailableError(
        "the rest of a message has not arrived over the unix socket in time"));
  } else if (!may_send_ && quiet_ticks_ > kMostToReady) {
    CloseLocked(absl::UnavailableError(
        "the server that listens at the unix socket has not said that it is ready"));
  } else if (quiet_ticks_ > kQuietUntilPing + kMostToPong) {
    CloseLocked(absl::UnavailableError("the server has not answered a ping over the unix socket"));
  } else if (quiet_ticks_ == kQuietUntilPing && may_send_) {
    SignalLocked(MessageKind::kPing);
  }
  ArmLocked();
}

void MessageSocket::Close() {
  FileDescriptor socket;
  std::deque<Outgoing> dropped;
  absl::Status status;
  SocketLoop* loop = nullptr;
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    loop = loop_;
    number = number_;
    socket = std::move(socket_);
    dropped.swap(queue_);
    status = *closing_;
  }
  const std::shared_ptr<MessageSocket> self = shared_from_this();
  loop->Remove(number, descriptor_);
  socket = FileDescriptor();
  dropped.clear();
  std::exchange(events_, nullptr)->OnClosed(status);
}

}  // namespace syncgrads
