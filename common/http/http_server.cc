#include "common/http/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/http/http_tls.h"
#include "common/mutex.h"

namespace syncgrads {
namespace {

constexpr std::chrono::seconds kConnectionTimeout(2);
constexpr size_t kThreads = 8;
// No page needs a request with a body.
constexpr size_t kLargestBody = 1024;
// Each stream of events occupies a thread.
constexpr int kMaxEventStreams = 4;
// How long a reader may take to accept an event.
constexpr absl::Duration kEventTimeout = absl::Seconds(5);
// An event is written in pieces of this size, because the library waits for each piece.
constexpr size_t kEventPiece = 4096;

// The open streams of events of one server. Thread-safe.
class EventStreams {
 public:
  explicit EventStreams(absl::Duration interval) : interval_(interval) {}

  // Returns false if there are kMaxEventStreams, or the server ends. Otherwise, Close must follow.
  bool Open() {
    MutexLock lock(mutex_);
    if (ended_ || open_ == kMaxEventStreams) return false;
    ++open_;
    return true;
  }
  void Close() {
    MutexLock lock(mutex_);
    --open_;
  }
  // Waits until the next event is due. Returns false if the server ends.
  bool AwaitNext() {
    const absl::Time next = MonotonicNow() + interval_;
    MutexLock lock(mutex_);
    while (!ended_ && changed_.WaitUntil(mutex_, next)) {
    }
    return !ended_;
  }
  void End() {
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }
  bool ended() const {
    MutexLock lock(mutex_);
    return ended_;
  }

 private:
  const absl::Duration interval_;
  mutable Mutex mutex_;
  CondVar changed_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Writes one event. Returns false if the reader has not accepted it in time, or is gone.
bool WriteEvent(const std::string& data, const EventStreams& streams, httplib::DataSink& sink) {
  const std::string event = absl::StrCat("data: ", data, "\n\n");
  const absl::Time deadline = MonotonicNow() + kEventTimeout;
  for (size_t begin = 0; begin < event.size(); begin += kEventPiece) {
    if (streams.ended() || MonotonicNow() >= deadline) return false;
    const size_t size = std::min(kEventPiece, event.size() - begin);
    if (!sink.write(event.data() + begin, size)) return false;
  }
  return true;
}

// Sends the next event of a stream. Returns false if the stream has to end.
bool SendNext(const HttpEventPages::mapped_type& next, EventStreams& streams,
              httplib::DataSink& sink) {
  try {
    const absl::StatusOr<std::string> data = next();
    return data.ok() && WriteEvent(*data, streams, sink);
  } catch (const std::exception&) {
    return false;
  }
}

void ServeEvents(const HttpEventPages::mapped_type& next, EventStreams& streams,
                 httplib::Response& answer) {
  answer.set_header("Cache-Control", "no-store");
  if (!streams.Open()) {
    answer.status = 503;
    answer.set_content(absl::StrCat("this server has ", kMaxEventStreams,
                                    " streams of events, which is the limit\n"),
                       "text/plain; charset=utf-8");
    return;
  }
  answer.set_chunked_content_provider(
      "text/event-stream",
      [&next, &streams](size_t offset, httplib::DataSink& sink) {
        // The first event is due at once.
        return (offset == 0 || streams.AwaitNext()) && SendNext(next, streams, sink);
      },
      [&streams](bool) { streams.Close(); });
}

void Fill(const HttpReply& reply, httplib::Response& answer) {
  answer.status = reply.status;
  answer.set_header("Cache-Control", "no-store");
  for (const auto& [name, value] : reply.headers) answer.set_header(name, value);
  answer.set_content(reply.body, reply.content_type);
}

HttpCaller CallerOf(const httplib::Request& request) {
  HttpCaller caller;
  caller.peer = request.remote_addr;
  caller.names = NamesOfPeer(request.ssl);
  const std::string authorization = request.get_header_value("Authorization");
  std::string decoded;
  if (absl::StartsWith(authorization, "Bearer ")) {
    caller.token = authorization.substr(7);
  } else if (absl::StartsWith(authorization, "Basic ") &&
             absl::Base64Unescape(authorization.substr(6), &decoded)) {
    // USER:PASSWORD; the user does not matter.
    const size_t colon = decoded.find(':');
    if (colon != std::string::npos) caller.token = decoded.substr(colon + 1);
  }
  return caller;
}

}  // namespace

struct HttpServer::Connections {
  Connections(HttpEvents served, HttpSecurity secured)
      : events(std::move(served)), security(std::move(secured)), streams(events.interval) {
    if (security.tls.certificate.empty()) {
      server = std::make_unique<httplib::Server>();
    } else {
      server = std::make_unique<httplib::SSLServer>([this](SSL_CTX& context) {
        SetUpTls(context, security.tls);
        return true;
      });
    }
  }
  ~Connections() {
    streams.End();
    server->stop();
    if (listener.joinable()) listener.join();
  }

  const HttpEvents events;
  const HttpSecurity security;
  EventStreams streams;
  std::unique_ptr<httplib::Server> server;
  std::atomic<bool> ended = false;
  std::thread listener;
};

HttpServer::HttpServer(HostPort address, std::unique_ptr<Connections> connections)
    : address_(std::move(address)), connections_(std::move(connections)) {}

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HostPort& address,
                                                              HttpPages pages, HttpEvents events,
                                                              HttpSecurity security) {
  auto connections = std::make_unique<Connections>(std::move(events), std::move(security));
  httplib::Server& server = *connections->server;
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
  if (const auto& refuse = connections->security.refuse; refuse != nullptr) {
    server.set_pre_routing_handler(
        [&refuse](const httplib::Request& request, httplib::Response& answer) {
          const std::optional<HttpReply> refusal = refuse(CallerOf(request), request.path);
          if (!refusal.has_value()) return httplib::Server::HandlerResponse::Unhandled;
          Fill(*refusal, answer);
          return httplib::Server::HandlerResponse::Handled;
        });
  }
  for (auto& [path, page] : pages) {
    server.Get(path, [page = std::move(page)](const httplib::Request&, httplib::Response& answer) {
      Fill(page(), answer);
    });
  }
  for (const auto& [path, next] : connections->events.pages) {
    server.Get(path, [&next = next, &streams = connections->streams](const httplib::Request&,
                                                                     httplib::Response& answer) {
      ServeEvents(next, streams, answer);
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
    own->server->listen_after_bind();
    own->ended = true;
  });
  while (!server.is_running() && !connections->ended) std::this_thread::yield();
  return absl::WrapUnique(new HttpServer(std::move(bound), std::move(connections)));
}

}  // namespace syncgrads
