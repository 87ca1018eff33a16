// A bare TCP connection: the throughput that a link or the kernel allows.
//
//   tcp_flow serve ADDRESS PORT MODE          PORT 0: a free port; prints "listening on PORT"
//   tcp_flow ADDRESS PORT MODE CONDUCTOR BYTES
//
// MODE is "send" or "echo". With "send", a step sends BYTES and receives one byte as
// acknowledgement. With "echo", it sends BYTES in blocks of 1 MiB and receives them back.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bench/conducted.h"

namespace syncgrads::bench {
namespace {

constexpr size_t kBlock = 1 << 20;

void Require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::_Exit(1);
}

sockaddr_in Address(const char* host, const char* port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
  Require(inet_pton(AF_INET, host, &address.sin_addr) == 1, host);
  return address;
}

void SendAll(int fd, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t n = send(fd, bytes, count, MSG_NOSIGNAL);
    Require(n > 0, "send");
    bytes += n;
    count -= static_cast<size_t>(n);
  }
}

// Returns false at the end of the stream.
bool ReceiveAll(int fd, char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t n = recv(fd, bytes, count, 0);
    Require(n >= 0, "recv");
    if (n == 0) return false;
    bytes += n;
    count -= static_cast<size_t>(n);
  }
  return true;
}

// Serves one connection. A message is its length in 8 bytes, followed by its bytes.
int Serve(const char* host, const char* port, bool echo) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  Require(listener >= 0, "socket");
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = Address(host, port);
  Require(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
  Require(listen(listener, 1) == 0, "listen");
  socklen_t size = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::printf("listening on %d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  const int fd = accept(listener, nullptr, nullptr);
  Require(fd >= 0, "accept");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::vector<char> block(kBlock);
  uint64_t count = 0;
  while (ReceiveAll(fd, reinterpret_cast<char*>(&count), sizeof count)) {
    while (count > 0) {
      const size_t now = std::min<uint64_t>(count, block.size());
      if (!ReceiveAll(fd, block.data(), now)) return 1;
      if (echo) SendAll(fd, block.data(), now);
      count -= now;
    }
    if (!echo) SendAll(fd, "k", 1);
  }
  return 0;
}

int Call(char** argv) {
  const bool echo = std::string(argv[3]) == "echo";
  std::vector<float> data(std::strtoull(argv[5], nullptr, 10) / sizeof(float));
  const uint64_t bytes = data.size() * sizeof(float);
  char* const memory = reinterpret_cast<char*>(data.data());
  const sockaddr_in address = Address(argv[1], argv[2]);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  Require(fd >= 0, "socket");
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Require(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
  Values values(data.data(), data.data(), data.size(), /*rank=*/0, /*world_size=*/1);
  const auto send_all = [&] {
    SendAll(fd, reinterpret_cast<const char*>(&bytes), sizeof bytes);
    SendAll(fd, memory, bytes);
  };
  const int code = FollowConductor(argv[4], 0, values, [&] {
    // Large messages are sent by a second thread while the answer is read; otherwise both sides
    // could block on full socket buffers.
    std::thread sender;
    if (echo && bytes > kBlock / 4) {
      sender = std::thread(send_all);
    } else {
      send_all();
    }
    char receipt;
    Require(echo ? ReceiveAll(fd, memory, bytes) : ReceiveAll(fd, &receipt, 1), "receive");
    if (sender.joinable()) sender.join();
  });
  close(fd);
  return code;
}

}  // namespace
}  // namespace syncgrads::bench

int main(int argc, char** argv) {
  using namespace syncgrads::bench;
  if (argc == 5 && std::string(argv[1]) == "serve") {
    return Serve(argv[2], argv[3], std::string(argv[4]) == "echo");
  }
  if (argc == 6) return Call(argv);
  return 2;
}
