// Sends arbitrary bytes to the HTTP server on a connection. What it answers is a response, and it
// serves the page that is protected only to a caller with the token.

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/http/http_server.h"
#include "common/polling.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncgrads::fuzz {
namespace {

constexpr char kPage[] = "the protected page";
// Longer than the server waits for a request.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(20);

struct Served {
  Served() {
    HttpSecurity security;
    security.refuse = [this](const HttpCaller& caller,
                             const std::string& path) -> std::optional<HttpReply> {
      if (path == "/open") return std::nullopt;
      if (caller.token == "token") {
        allowed = true;
        return std::nullopt;
      }
      return HttpReply{.status = 401, .headers = {{"WWW-Authenticate", "Basic"}}};
    };
    HttpEvents events;
    events.pages["/events"] = [n = 0]() mutable -> absl::StatusOr<std::string> {
      if (++n % 2 == 0) return absl::CancelledError("the end");
      return std::string(kPage);
    };
    events.interval = absl::ZeroDuration();
    absl::StatusOr<std::unique_ptr<HttpServer>> started =
        HttpServer::Start({"127.0.0.1", 0},
                          {{"/open", [] { return HttpReply{.body = "open"}; }},
                           {"/protected", [] { return HttpReply{.body = kPage}; }}},
                          std::move(events), std::move(security));
    Require(started.ok(), "the server starts");
    server = *std::move(started);
  }

  // Whether a caller had the token.
  std::atomic<bool> allowed = false;
  std::unique_ptr<HttpServer> server;
};

// Takes a source address for `connection`, another one for each 1,000 connections: a port that has
// been used cannot be used again for a minute, and an address has 28,000 of them.
void BindToNext(int connection) {
  static uint32_t connections = 0;
  const int without_port = 1;
  setsockopt(connection, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &without_port, sizeof without_port);
  sockaddr_in source = {};
  source.sin_family = AF_INET;
  source.sin_addr.s_addr = htonl(INADDR_LOOPBACK + connections++ / 1000 % 250);
  Require(bind(connection, reinterpret_cast<sockaddr*>(&source), sizeof source) == 0,
          "the host has further loopback addresses");
}

// Connects the socket. A signal, such as that of libFuzzer's timer, may interrupt connect(), which
// goes on then.
void Connect(int connection, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int error = 0;
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    error = errno;
    if (error == EINTR && AwaitSocket(connection, POLLOUT, MonotonicNow() + kAnswerTimeout)) {
      socklen_t size = sizeof error;
      getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  Require(error == 0, absl::StrCat("the server accepts a connection: ", strerror(error)));
}

// Sends the bytes, ends the connection's direction, and returns what is answered.
std::string Exchange(const HttpServer& server, absl::string_view bytes) {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  BindToNext(connection);
  Connect(connection, server.address().port);
  while (!bytes.empty()) {
    const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;  // the server has answered already
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  shutdown(connection, SHUT_WR);
  std::string answer;
  char buffer[4096];
  const absl::Time deadline = MonotonicNow() + kAnswerTimeout;
  while (true) {
    // Not poll() itself, which libFuzzer's timer interrupts.
    Require(AwaitSocket(connection, POLLIN, deadline), "the server ends the connection in time");
    const ssize_t received = recv(connection, buffer, sizeof buffer, 0);
    if (received <= 0) break;
    answer.append(buffer, static_cast<size_t>(received));
  }
  close(connection);
  return answer;
}

}  // namespace

void Fuzz(absl::string_view input) {
  static Served served;
  served.allowed = false;
  const std::string answer = Exchange(*served.server, input);
  Require(answer.empty() || absl::StartsWith(answer, "HTTP/1."), "an answer is a response");
  Require(!absl::StrContains(answer, kPage) || served.allowed,
          "a protected page is served only to who has the token");
}

std::vector<std::string> Seeds() {
  const auto request = [](absl::string_view line, absl::string_view headers = "") {
    return absl::StrCat(line, " HTTP/1.1\r\nHost: a\r\n", headers, "\r\n");
  };
  return {
      request("GET /open"),
      request("HEAD /open?a=b%20c#d", "Accept-Encoding: gzip\r\nRange: bytes=0-1,2-\r\n"),
      request("GET /protected"),
      request("GET /protected", "Authorization: Bearer token\r\n"),
      request("GET /events", "Authorization: Basic dTp0b2tlbg==\r\n"),
      request("POST /open", "Content-Length: 3\r\n") + "a=b",
      request("PUT /open", "Transfer-Encoding: chunked\r\n") + "3\r\nabc\r\n0\r\n\r\n",
      request("GET /%2fopen",
              "Connection: keep-alive\r\nContent-Type: multipart/form-data; "
              "boundary=x\r\n"),
      request("POST /open", "Expect: 100-continue\r\nContent-Length: 99999999999\r\n"),
  };
}

}  // namespace syncgrads::fuzz
