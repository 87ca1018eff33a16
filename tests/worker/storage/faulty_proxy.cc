#include "tests/worker/storage/faulty_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace syncgrads {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool SendAll(int socket, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// Returns the header of the first request and what came with it; less if the client closes.
std::string ReadRequest(int client) {
  std::string request;
  char buffer[4096];
  while (!absl::StrContains(request, "\r\n\r\n")) {
    const ssize_t count = recv(client, buffer, sizeof(buffer), 0);
    if (count <= 0) break;
    request.append(buffer, static_cast<size_t>(count));
  }
  return request;
}

void AnswerBusy(int client) {
  SendAll(client, "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

// Forwards bytes in both directions until one end closes or `most` bytes of answers have been
// forwarded.
void Pump(int client, int server, size_t most) {
  char buffer[1 << 16];
  while (true) {
    pollfd ends[] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    if (poll(ends, 2, -1) < 0) return;
    for (const auto& [from, to] : {std::pair(0, server), std::pair(1, client)}) {
      if (ends[from].revents == 0) continue;
      const bool is_answer = from == 1;
      const size_t room = is_answer ? std::min(most, sizeof(buffer)) : sizeof(buffer);
      const ssize_t count = recv(ends[from].fd, buffer, room, 0);
      if (count <= 0) return;
      if (!SendAll(to, absl::string_view(buffer, static_cast<size_t>(count)))) return;
      if (is_answer) most -= static_cast<size_t>(count);
      if (most == 0) return;
    }
  }
}

}  // namespace

FaultyProxy::FaultyProxy(int server_port) : server_port_(server_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener_, 16) != 0) {
    std::abort();
  }
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

FaultyProxy::~FaultyProxy() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  {
    MutexLock lock(mutex_);
    for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
  }
  for (std::thread& server : servers_) server.join();
  for (const int socket : sockets_) close(socket);
  close(listener_);
}

void FaultyProxy::Inject(std::deque<Fault> faults) {
  MutexLock lock(mutex_);
  faults_ = std::move(faults);
}

int FaultyProxy::connections() const {
  MutexLock lock(mutex_);
  return connections_;
}

void FaultyProxy::Accept() {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    MutexLock lock(mutex_);
    ++connections_;
    sockets_.push_back(client);
    Fault fault;
    if (!faults_.empty()) {
      fault = faults_.front();
      faults_.pop_front();
    }
    servers_.emplace_back([this, client, fault] { Serve(client, fault); });
  }
}

void FaultyProxy::Serve(int client, Fault fault) {
  switch (fault.kind) {
    case Fault::kNone:
      Forward(client, "", SIZE_MAX);
      break;
    case Fault::kCut:
      Forward(client, "", fault.bytes);
      break;
    case Fault::kBusy:
      ReadRequest(client);
      AnswerBusy(client);
      break;
    case Fault::kBusyOnce: {
      const std::string request = ReadRequest(client);
      if (IsNew(request)) {
        AnswerBusy(client);
      } else {
        Forward(client, request, SIZE_MAX);
      }
      break;
    }
  }
  shutdown(client, SHUT_RDWR);
}

bool FaultyProxy::IsNew(absl::string_view request) {
  MutexLock lock(mutex_);
  return refused_once_.emplace(request.substr(0, request.find("\r\n"))).second;
}

void FaultyProxy::Forward(int client, absl::string_view request, size_t most) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(server_port_);
  if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      SendAll(server, request)) {
    Pump(client, server, most);
  }
  close(server);
}

}  // namespace syncgrads
