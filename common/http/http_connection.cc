#include "common/http/http_connection.h"

#include <netdb.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/net/address.h"
#include "common/polling.h"

namespace syncgrads {
namespace {

// With its headers and its body. What follows is not received.
constexpr size_t kLargestRequest = 32 << 10;
// No page needs a request with a body. A small one is received, because a connection that is closed
// with unread bytes may lose its answer.
constexpr size_t kLargestBody = 1024;
// How long a peer may take no byte of its answer.
constexpr absl::Duration kWriteTimeout = absl::Seconds(2);

// Puts the numeric address of one end of a connection into `ip` and `port`. `name` is getpeername
// or getsockname.
void Describe(int socket, decltype(&getpeername) name, std::string& ip, int& port) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = "";
  char service[NI_MAXSERV] = "";
  if (name(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), service,
                  sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return;
  }
  ip = host;
  (void)absl::SimpleAtoi(service, &port);
}

std::string NetworkOfPeer(int socket) {
  std::string ip;
  int port = 0;
  Describe(socket, &getpeername, ip, port);
  return NetworkOf(ip);
}

}  // namespace

HttpConnection::HttpConnection(FileDescriptor socket, TlsConnection tls, absl::Time deadline)
    : socket_(std::move(socket)),
      network_(NetworkOfPeer(socket_.get())),
      tls_(std::move(tls)),
      deadline_(deadline),
      awaited_(POLLIN) {
  if (tls_ == nullptr) return;
  SSL_set_fd(tls_.get(), socket_.get());
  // Otherwise one read could handle messages of TLS for as long as the peer sends them.
  SSL_clear_mode(tls_.get(), SSL_MODE_AUTO_RETRY);
  SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

HttpConnection::~HttpConnection() {
  if (tls_ != nullptr && SSL_is_init_finished(tls_.get())) {
    SSL_shutdown(tls_.get());
    ERR_clear_error();
  }
  shutdown(socket_.get(), SHUT_RDWR);
}

HttpConnection::Arrival HttpConnection::Receive() {
  if (tls_ != nullptr && !SSL_is_init_finished(tls_.get())) {
    // The errors of a thread may be those of another connection.
    ERR_clear_error();
    const int result = SSL_accept(tls_.get());
    if (result != 1) return IsNotReady(result) ? Arrival::kGoesOn : Arrival::kFailed;
  }
  char buffer[4096];
  while (received_.size() < kLargestRequest) {
    const size_t known = received_.size();
    const std::optional<size_t> size =
        ReadReady(buffer, std::min(sizeof(buffer), kLargestRequest - known));
    if (!size.has_value()) return Arrival::kGoesOn;
    if (*size == 0) return received_.empty() ? Arrival::kFailed : Arrival::kEnded;
    received_.append(buffer, *size);
    if (IsComplete(known)) return Arrival::kEnded;
  }
  return Arrival::kEnded;
}

absl::string_view HttpConnection::path() const {
  absl::string_view line = absl::string_view(received_).substr(0, received_.find('\n'));
  if (!absl::ConsumePrefix(&line, "GET ") && !absl::ConsumePrefix(&line, "HEAD ")) return "";
  return line.substr(0, line.find_first_of(" ?"));
}

bool HttpConnection::IsComplete(size_t known) {
  if (!request_size_.has_value()) {
    // The library, too, ends a line at LF, and the head at a line that has only CR LF.
    const size_t last = received_.find("\n\r\n", known - std::min<size_t>(known, 2));
    if (last == std::string::npos) return false;
    request_size_ = last + 3 + PrepareHead(last + 1);
  }
  return received_.size() >= *request_size_;
}

size_t HttpConnection::PrepareHead(size_t end) {
  constexpr absl::string_view kBodySize = "content-length:";
  size_t body = 0;
  for (size_t begin = 0, next = 0; begin < end; begin = next) {
    next = received_.find('\n', begin) + 1;
    const absl::string_view line = absl::string_view(received_).substr(begin, next - begin);
    if (absl::StartsWithIgnoreCase(line, kBodySize)) {
      uint64_t size = 0;
      // Another value is for the library to refuse.
      if (absl::SimpleAtoi(line.substr(kBodySize.size()), &size) && size <= kLargestBody) {
        body = static_cast<size_t>(size);
      }
    } else if (absl::StartsWithIgnoreCase(line, "range:")) {
      // Pages are sent as a whole. The library would match the ranges with a regular expression,
      // which takes several MiB of the thread's stack for a long header.
      received_[begin] = '-';
    }
  }
  return body;
}

ssize_t HttpConnection::read(char* data, size_t size) {
  const size_t count = std::min(size, received_.size() - read_);
  std::memcpy(data, received_.data() + read_, count);
  read_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t HttpConnection::write(const char* data, size_t size) {
  const absl::Time deadline = WriteDeadline();
  while (true) {
    const std::optional<size_t> written = WriteReady(data, size);
    if (written.has_value()) return *written > 0 ? static_cast<ssize_t>(*written) : -1;
    if (!AwaitSocket(socket_.get(), awaited_, deadline)) return -1;
  }
}

bool HttpConnection::is_writable() const {
  return AwaitSocket(socket_.get(), POLLOUT, WriteDeadline());
}

absl::Time HttpConnection::WriteDeadline() const {
  return std::min(MonotonicNow() + kWriteTimeout, answer_deadline_);
}

void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
  Describe(socket_.get(), &getpeername, ip, port);
}

void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
  Describe(socket_.get(), &getsockname, ip, port);
}

std::optional<size_t> HttpConnection::ReadReady(char* data, size_t size) {
  if (tls_ != nullptr) {
    ERR_clear_error();
    const int result = SSL_read(tls_.get(), data, static_cast<int>(size));
    if (result > 0) return static_cast<size_t>(result);
    if (IsNotReady(result)) return std::nullopt;
    return 0;
  }
  const ssize_t result = recv(socket_.get(), data, size, 0);
  if (result >= 0) return static_cast<size_t>(result);
  if (errno != EAGAIN && errno != EINTR) return 0;
  awaited_ = POLLIN;
  return std::nullopt;
}

std::optional<size_t> HttpConnection::WriteReady(const char* data, size_t size) {
  if (tls_ != nullptr) {
    ERR_clear_error();
    const int result =
        SSL_write(tls_.get(), data, static_cast<int>(std::min<size_t>(size, 1 << 20)));
    if (result > 0) return static_cast<size_t>(result);
    if (IsNotReady(result)) return std::nullopt;
    return 0;
  }
  const ssize_t result = send(socket_.get(), data, size, MSG_NOSIGNAL);
  if (result >= 0) return static_cast<size_t>(result);
  if (errno != EAGAIN && errno != EINTR) return 0;
  awaited_ = POLLOUT;
  return std::nullopt;
}

bool HttpConnection::IsNotReady(int result) {
  const int error = SSL_get_error(tls_.get(), result);
  if (error == SSL_ERROR_WANT_READ) awaited_ = POLLIN;
  if (error == SSL_ERROR_WANT_WRITE) awaited_ = POLLOUT;
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
}

}  // namespace syncgrads
