#include "common/http/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

constexpr std::chrono::seconds kConnectionTimeout(2);
constexpr size_t kThreads = 8;
// No page needs a request with a body.
constexpr size_t kLargestBody = 1024;

}  // namespace

struct HttpServer::Connections {
  ~Connections() {
    server.stop();
    if (listener.joinable()) listener.join();
  }

  httplib::Server server;
  std::atomic<bool> ended = false;
  std::thread listener;
};

HttpServer::HttpServer(HostPort address, std::unique_ptr<Connections> connections)
    : address_(std::move(address)), connections_(std::move(connections)) {}

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HostPort& address,
                                                              HttpPages pages) {
  auto connections = std::make_unique<Connections>();
  httplib::Server& server = connections->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_keep_alive_max_count(1);
  server.set_read_timeout(kConnectionTimeout);
  server.set_write_timeout(kConnectionTimeout);
  server.set_payload_max_length(kLargestBody);
  // The library's default, SO_REUSEPORT, would let two processes share one port by mistake.
  server.set_socket_options([](int socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  });
  for (auto& [path, page] : pages) {
    server.Get(path, [page = std::move(page)](const httplib::Request&, httplib::Response& answer) {
      const HttpReply reply = page();
      answer.status = reply.status;
      answer.set_header("Cache-Control", "no-store");
      for (const auto& [name, value] : reply.headers) answer.set_header(name, value);
      answer.set_content(reply.body, reply.content_type);
    });
  }
  HostPort bound = address;
  bool listens = false;
  if (address.port == 0) {
    const int port = server.bind_to_any_port(address.host);
    listens = port > 0;
    if (listens) bound.port = static_cast<uint16_t>(port);
  } else {
    listens = server.bind_to_port(address.host, address.port);
  }
  if (!listens) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", ToString(address),
                     " for HTTP: the port is in use, or the address is not one of this host"));
  }
  // stop() has no effect before the listener runs, so this waits until it does.
  connections->listener = std::thread([own = connections.get()] {
    own->server.listen_after_bind();
    own->ended = true;
  });
  while (!server.is_running() && !connections->ended) std::this_thread::yield();
  return absl::WrapUnique(new HttpServer(std::move(bound), std::move(connections)));
}

}  // namespace syncgrads
