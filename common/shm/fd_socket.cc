#include "common/shm/fd_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/polling.h"

namespace syncgrads {
namespace {

std::string Reason() { return std::strerror(errno); }

// Writes an abstract address, which is a zero byte followed by the name. Returns its length.
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
    const int ready = poll(&polled, 1, PollTimeout(deadline));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0 && MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError("the peer on the unix socket has not answered");
    }
    if (ready < 0 && errno != EINTR) return absl::UnavailableError(Reason());
  }
}

bool IsShutDown(int socket) {
  pollfd polled{socket, POLLIN, 0};
  return poll(&polled, 1, 0) > 0 && (polled.revents & POLLHUP) != 0;
}

FileDescriptor NewSocket(int type) {
  return FileDescriptor(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

absl::StatusOr<FileDescriptor> ConnectTo(const std::string& address, int type) {
  sockaddr_un name;
  absl::StatusOr<socklen_t> length = Fill(address, name);
  if (!length.ok()) return length.status();
  FileDescriptor socket = NewSocket(type);
  if (!socket.valid())
    return absl::UnavailableError(absl::StrCat("cannot create a socket: ", Reason()));
  while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), *length) != 0) {
    if (errno == EINTR) continue;
    const absl::StatusCode code =
        errno == EAGAIN ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable;
    return absl::Status(
        code, absl::StrCat("cannot connect to the unix socket \"@", address, "\": ", Reason()));
  }
  return socket;
}

// Returns the descriptors that were received with a message. This process owns them.
std::vector<FileDescriptor> TakeDescriptors(msghdr& message) {
  std::vector<FileDescriptor> taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof number, sizeof number);
      taken.emplace_back(number);
    }
  }
  return taken;
}

}  // namespace

absl::StatusOr<unsigned> PeerUserOf(const FileDescriptor& socket) {
  ucred credentials;
  socklen_t length = sizeof credentials;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return absl::UnavailableError(absl::StrCat("the peer's user is unknown: ", Reason()));
  }
  return credentials.uid;
}

absl::StatusOr<FdSocket> FdSocket::Connect(const std::string& address) {
  absl::StatusOr<FileDescriptor> socket = ConnectTo(address, SOCK_SEQPACKET);
  if (!socket.ok()) return socket.status();
  return FdSocket(*std::move(socket));
}

absl::StatusOr<unsigned> FdSocket::PeerUser() const { return PeerUserOf(socket_); }

absl::StatusOr<FileDescriptor> ConnectToOwnStream(const std::string& address) {
  absl::StatusOr<FileDescriptor> socket = ConnectTo(address, SOCK_STREAM);
  if (!socket.ok()) return socket;
  const absl::StatusOr<unsigned> user = PeerUserOf(*socket);
  if (!user.ok()) return user.status();
  if (*user == geteuid()) return socket;
  return absl::PermissionDeniedError(absl::StrCat("the unix socket \"@", address,
                                                  "\" belongs to user ", *user,
                                                  ", this process is of user ", geteuid()));
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
      // If the peer closes without reading, recvmsg reports this once, before the messages that the
      // peer has sent.
      if (errno == EAGAIN || errno == EINTR || errno == ECONNRESET) continue;
      return absl::UnavailableError(Reason());
    }
    std::vector<FileDescriptor> descriptors = TakeDescriptors(message);
    if (bytes == 0) return absl::UnavailableError("the peer has closed the unix socket");
    if (descriptors.size() > 1 || (message.msg_flags & MSG_CTRUNC)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message on the unix socket has ", descriptors.size(),
                       message.msg_flags & MSG_CTRUNC ? " or more" : "",
                       " file descriptors, at most 1 is allowed"));
    }
    if (message.msg_flags & MSG_TRUNC) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message on the unix socket is longer than ", kMaxText, " bytes"));
    }
    if (!descriptors.empty()) received.descriptor = std::move(descriptors.front());
    received.text.resize(static_cast<size_t>(bytes));
    return received;
  }
}

void FdSocket::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

absl::StatusOr<FdListener> FdListener::Listen(const std::string& address) {
  sockaddr_un name;
  absl::StatusOr<socklen_t> length = Fill(address, name);
  if (!length.ok()) return length.status();
  FileDescriptor socket = NewSocket(SOCK_SEQPACKET);
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

absl::StatusOr<FdSocket> FdListener::Accept(absl::Time deadline) {
  while (true) {
    if (absl::Status ready = WaitFor(socket_.get(), POLLIN, deadline); !ready.ok()) return ready;
    FileDescriptor accepted(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.valid()) return FdSocket(std::move(accepted));
    switch (errno) {
      case EINTR:
      case ECONNABORTED:
        continue;
      case EAGAIN:
        // The connection is no longer pending, or the listener is shut down.
        if (IsShutDown(socket_.get())) return absl::CancelledError("the listener is shut down");
        continue;
      case EMFILE:
      case ENFILE:
      case ENOMEM:
      case ENOBUFS:
        return absl::ResourceExhaustedError(Reason());
      default:
        return absl::CancelledError(Reason());
    }
  }
}

void FdListener::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace syncgrads
