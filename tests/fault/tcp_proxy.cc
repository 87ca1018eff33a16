#include "tests/fault/tcp_proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace syncgrads::fault {
namespace {

// If this many bytes wait in one direction of a connection, the proxy stops reading.
constexpr size_t kMostBuffered = 4 << 20;
constexpr size_t kBlock = 64 << 10;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Returns a connected socket, or -1 if no process listens. The socket is blocking; reads and writes
// use MSG_DONTWAIT.
int Connect(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return -1;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpProxy>> TcpProxy::Start(ClientOfPort client_of_port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    close(fd);
    return absl::UnavailableError(absl::StrCat("a proxy cannot listen: ", strerror(errno)));
  }
  return absl::WrapUnique(new TcpProxy(fd, ntohs(address.sin_port), std::move(client_of_port)));
}

TcpProxy::TcpProxy(int listener, uint16_t port, ClientOfPort client_of_port)
    : listener_(listener),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      port_(port),
      client_of_port_(std::move(client_of_port)),
      thread_([this] { Run(); }) {}

TcpProxy::~TcpProxy() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  eventfd_write(wake_, 1);
  thread_.join();
  close(listener_);
  close(wake_);
}

void TcpProxy::SetUpstream(uint16_t port) {
  std::lock_guard lock(mutex_);
  upstream_ = port;
}

void TcpProxy::SetLink(int client, const LinkState& state) {
  {
    std::lock_guard lock(mutex_);
    links_[client] = state;
  }
  eventfd_write(wake_, 1);
}

LinkState TcpProxy::LinkOf(int client) const {
  std::lock_guard lock(mutex_);
  return LinkOfLocked(client);
}

LinkState TcpProxy::LinkOfLocked(int client) const {
  const auto found = links_.find(client);
  return found == links_.end() ? LinkState() : found->second;
}

void TcpProxy::Run() {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (stopped_) break;
    }
    const absl::Time now = absl::Now();
    absl::Time wake = now + absl::Seconds(1);
    waits_ = {{.fd = listener_, .events = POLLIN, .revents = 0},
              {.fd = wake_, .events = POLLIN, .revents = 0}};
    for (Connection& connection : connections_) {
      const LinkState link = LinkOf(connection.client);
      if (link.cut) connection.broken = true;
      Prepare(link, connection.up, now, wake);
      Prepare(link, connection.down, now, wake);
    }
    const absl::Duration wait = std::max(wake - now, absl::ZeroDuration());
    poll(waits_.data(), waits_.size(),
         static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)))));
    eventfd_t woken;
    eventfd_read(wake_, &woken);
    if (waits_[0].revents != 0) Accept();
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      {
        // The lock is held while bytes are moved, as SetLink promises.
        std::lock_guard lock(mutex_);
        const LinkState link = LinkOfLocked(connection->client);
        if (link.cut) connection->broken = true;
        if (!connection->broken) Move(link, *connection, connection->up);
        if (!connection->broken) Move(link, *connection, connection->down);
      }
      const bool over =
          connection->broken || (connection->up.to_ended && connection->down.to_ended);
      if (!over) {
        ++connection;
        continue;
      }
      close(connection->up.from);
      close(connection->up.to);
      connection = connections_.erase(connection);
    }
  }
  for (Connection& connection : connections_) {
    close(connection.up.from);
    close(connection.up.to);
  }
}

void TcpProxy::Accept() {
  sockaddr_in peer = {};
  socklen_t length = sizeof(peer);
  const int fd =
      accept4(listener_, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  Connection connection;
  connection.client = client_of_port_ ? client_of_port_(ntohs(peer.sin_port)) : -1;
  uint16_t upstream;
  {
    std::lock_guard lock(mutex_);
    upstream = upstream_;
  }
  const int server = LinkOf(connection.client).cut ? -1 : Connect(upstream);
  if (server < 0) {
    close(fd);
    return;
  }
  connection.up.from = connection.down.to = fd;
  connection.up.to = connection.down.from = server;
  connection.up.counted = connection.down.counted = absl::Now();
  connections_.push_back(std::move(connection));
}

void TcpProxy::Prepare(const LinkState& link, Pipe& pipe, absl::Time now, absl::Time& wake) {
  if (link.black_hole) return;
  if (!pipe.from_ended && pipe.buffered < kMostBuffered) {
    waits_.push_back({.fd = pipe.from, .events = POLLIN, .revents = 0});
  }
  if (pipe.blocks.empty()) return;
  if (pipe.blocks.front().due > now) {
    wake = std::min(wake, pipe.blocks.front().due);
  } else if (link.bytes_per_second > 0) {
    wake = std::min(wake, now + absl::Milliseconds(1));
  } else {
    waits_.push_back({.fd = pipe.to, .events = POLLOUT, .revents = 0});
  }
}

void TcpProxy::Move(const LinkState& link, Connection& connection, Pipe& pipe) {
  if (link.black_hole) return;
  if (!Receive(link, pipe) || !Send(link, pipe)) connection.broken = true;
}

bool TcpProxy::Receive(const LinkState& link, Pipe& pipe) {
  while (!pipe.from_ended && pipe.buffered < kMostBuffered) {
    std::string bytes(kBlock, '\0');
    const ssize_t length = recv(pipe.from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (length < 0) return errno == EAGAIN || errno == EINTR;
    if (length == 0) pipe.from_ended = true;
    if (length > 0) {
      bytes.resize(static_cast<size_t>(length));
      pipe.buffered += bytes.size();
      pipe.blocks.push_back({absl::Now() + link.delay, std::move(bytes)});
    }
  }
  return true;
}

bool TcpProxy::Send(const LinkState& link, Pipe& pipe) {
  const absl::Time now = absl::Now();
  const double earned =
      absl::ToDoubleSeconds(now - pipe.counted) * static_cast<double>(link.bytes_per_second);
  // A burst is limited to the bytes of 20 ms.
  pipe.allowance =
      std::min(pipe.allowance + earned, 1 + static_cast<double>(link.bytes_per_second) / 50);
  pipe.counted = now;
  while (!pipe.blocks.empty() && pipe.blocks.front().due <= now) {
    Block& block = pipe.blocks.front();
    size_t most = block.bytes.size() - block.sent;
    if (link.bytes_per_second > 0) most = std::min(most, static_cast<size_t>(pipe.allowance));
    if (most == 0) return true;
    const ssize_t sent =
        send(pipe.to, block.bytes.data() + block.sent, most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    pipe.allowance -= static_cast<double>(sent);
    pipe.buffered -= static_cast<size_t>(sent);
    passed_bytes_.fetch_add(static_cast<uint64_t>(sent), std::memory_order_relaxed);
    block.sent += static_cast<size_t>(sent);
    if (block.sent == block.bytes.size()) pipe.blocks.pop_front();
  }
  if (pipe.from_ended && pipe.blocks.empty() && !pipe.to_ended) {
    shutdown(pipe.to, SHUT_WR);
    pipe.to_ended = true;
  }
  return true;
}

}  // namespace syncgrads::fault
