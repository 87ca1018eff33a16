#include "common/shm/fd_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace syncgrads {
namespace {

std::string Reason() { return std::strerror(errno); }

// An abstract address: a zero byte, then the name.
absl::StatusOr<socklen_t> Fill(const std::string& address, sockaddr_un& out) {
  out = {};
  out.sun_family = AF_UNIX;
  if (address.size() + 1 > sizeof out.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("socket address \"", address, "\" has ",
                                                   address.size(), " bytes; at most ",
                                                   sizeof out.sun_path - 1));
  }
  std::memcpy(out.sun_path + 1, address.data(), address.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size());
}

absl::Status WaitFor(int socket, short events, absl::Time deadline) {
  while (true) {
    pollfd polled{socket, events, 0};
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    const int timeout = static_cast<int>(
        std::min<int64_t>(absl::ToInt64Milliseconds(left + absl::Milliseconds(1)), 1 << 30));
    const int ready = poll(&polled, 1, timeout);
    if (ready > 0) return absl::OkStatus();
    if (ready == 0 && absl::Now() >= deadline) {
      return absl::DeadlineExceededError("the peer on the unix socket has not answered");
    }
    if (ready < 0 && errno != EINTR) return absl::UnavailableError(Reason());
  }
}

FileDescriptor NewSocket() {
  return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

}  // namespace

absl::StatusOr<FdSocket> FdSocket::Connect(const std::string& address) {
  sockaddr_un name;
  absl::StatusOr<socklen_t> length = Fill(address, name);
  if (!length.ok()) return length.status();
  FileDescriptor socket = NewSocket();
  if (!socket.valid() ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), *length) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no unix socket \"@", address, "\" can be reached: ", Reason()));
  }
  return FdSocket(std::move(socket));
}

absl::StatusOr<unsigned> FdSocket::PeerUser() const {
  ucred credentials;
  socklen_t length = sizeof credentials;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return absl::UnavailableError(absl::StrCat("the peer's user is unknown: ", Reason()));
  }
  return credentials.uid;
}

absl::Status FdSocket::Send(absl::string_view text, const FileDescriptor* descriptor,
                            absl::Time deadline) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = descriptor->get();
    std::memcpy(CMSG_DATA(header), &number, sizeof number);
  }
  while (true) {
    if (absl::Status ready = WaitFor(socket_.get(), POLLOUT, deadline); !ready.ok()) return ready;
    if (sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return absl::OkStatus();
    }
    if (errno != EAGAIN && errno != EINTR) return absl::UnavailableError(Reason());
  }
}

absl::StatusOr<FdSocket::Message> FdSocket::Receive(absl::Time deadline) {
  Message received;
  received.text.resize(kMaxText);
  while (true) {
    if (absl::Status ready = WaitFor(socket_.get(), POLLIN, deadline); !ready.ok()) return ready;
    iovec part{received.text.data(), received.text.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t bytes = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (bytes < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      return absl::UnavailableError(Reason());
    }
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      int number;
      std::memcpy(&number, CMSG_DATA(header), sizeof number);
      received.descriptor = FileDescriptor(number);
    }
    if (bytes == 0) return absl::UnavailableError("the peer has closed the unix socket");
    if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
      return absl::InvalidArgumentError("a message on the unix socket is too long");
    }
    received.text.resize(static_cast<size_t>(bytes));
    return received;
  }
}

void FdSocket::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

absl::StatusOr<FdListener> FdListener::Listen(const std::string& address) {
  sockaddr_un name;
  absl::StatusOr<socklen_t> length = Fill(address, name);
  if (!length.ok()) return length.status();
  FileDescriptor socket = NewSocket();
  if (!socket.valid() ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), *length) != 0 ||
      listen(socket.get(), 64) != 0) {
    const absl::StatusCode code =
        errno == EADDRINUSE ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kUnavailable;
    return absl::Status(
        code, absl::StrCat("cannot listen on unix socket \"@", address, "\": ", Reason()));
  }
  return FdListener(std::move(socket));
}

absl::StatusOr<FdSocket> FdListener::Accept() {
  while (true) {
    FileDescriptor accepted(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (accepted.valid()) return FdSocket(std::move(accepted));
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return absl::CancelledError(Reason());
  }
}

void FdListener::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace syncgrads
