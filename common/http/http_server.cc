#include "common/http/http_server.h"

#include <fcntl.h>
#include <httplib.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/http/http_connection.h"
#include "common/http/http_tls.h"
#include "common/http/network_share.h"
#include "common/mutex.h"
#include "common/polling.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr size_t kThreads = 8;
// The maximum number of connections whose requests are incomplete: of all networks (NetworkOf), and
// of one.
constexpr size_t kMostArriving = 64;
constexpr size_t kMostArrivingOfNetwork = 16;
// The maximum number of complete requests that wait for one of the kThreads threads.
constexpr size_t kMostWaiting = 64;
// The paths of probes, and the maximum number of complete requests for them that wait. The thread
// for probes does not wait for readers, because an answer to a probe fits the socket's buffer.
constexpr absl::string_view kProbes[] = {"/livez", "/readyz"};
constexpr size_t kMostProbes = 64;
// The maximum number of connections to accept before those that have been accepted have a turn. No
// connection makes room for others before it had one.
constexpr int kAtOnce = 16;
static_assert(kAtOnce <= kMostArrivingOfNetwork && kAtOnce <= kMostArriving);
// How long no connection is accepted after an error, such as a lack of file descriptors.
constexpr absl::Duration kAcceptBackoff = absl::Milliseconds(50);
// Each stream of events occupies a thread. One caller cannot have all of them.
constexpr size_t kMaxPageStreams = 4;
constexpr size_t kMaxPageStreamsOfCaller = 2;
// How long a reader may take to accept an event.
constexpr absl::Duration kEventTimeout = absl::Seconds(5);
// An event is written in pieces of this size, because the library waits for each piece.
constexpr size_t kEventPiece = 4096;
constexpr char kEventType[] = "text/event-stream";

// The open streams of events to pages. Thread-safe.
class PageStreams {
 public:
  explicit PageStreams(absl::Duration interval) : interval_(interval) {}

  // Opens a stream of a caller; see KeyOf. If it is OK, Close must follow.
  //
  // Errors:
  //   ResourceExhausted  there are kMaxPageStreams, or kMaxPageStreamsOfCaller of this caller
  //   Unavailable        the server ends
  absl::Status Open(const std::string& caller) {
    MutexLock lock(mutex_);
    if (ended_) return absl::UnavailableError("the server ends");
    const auto of_caller = static_cast<size_t>(absl::c_count(callers_, caller));
    if (of_caller >= kMaxPageStreamsOfCaller) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "this caller has ", of_caller, " streams of events, which is the limit for one"));
    }
    if (callers_.size() >= kMaxPageStreams) {
      return absl::ResourceExhaustedError(absl::StrCat("this server has ", callers_.size(),
                                                       " streams of events, which is the limit"));
    }
    callers_.push_back(caller);
    return absl::OkStatus();
  }
  void Close(const std::string& caller) {
    MutexLock lock(mutex_);
    callers_.erase(absl::c_find(callers_, caller));
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
  // The caller of each open stream.
  std::vector<std::string> callers_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Connections whose requests are complete, and which wait for a thread. Thread-safe.
class RequestQueue {
 public:
  explicit RequestQueue(size_t limit) : limit_(limit) {}

  // If there are as many as the limit, ends the newest connection of the network that has the most;
  // `connection` itself if no other network has more than its own.
  void Push(std::unique_ptr<HttpConnection> connection) {
    // Declared before the lock: the connection is ended without it.
    std::unique_ptr<HttpConnection> ended;
    MutexLock lock(mutex_);
    if (waiting_.size() >= limit_) {
      std::vector<std::string> networks;
      for (const auto& one : waiting_) networks.push_back(one->network());
      const std::string full =
          NetworkToEvict(networks, connection->network(), limit_, limit_).value();
      if (full == connection->network()) return;
      const auto newest = std::find_if(waiting_.rbegin(), waiting_.rend(),
                                       [&](const auto& one) { return one->network() == full; });
      ended = std::move(*newest);
      waiting_.erase(std::next(newest).base());
    }
    waiting_.push_back(std::move(connection));
    changed_.NotifyOne();
  }
  // Waits for a connection. Returns null after End.
  std::unique_ptr<HttpConnection> Pop() {
    MutexLock lock(mutex_);
    while (waiting_.empty() && !ended_) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
    if (ended_) return nullptr;
    std::unique_ptr<HttpConnection> first = std::move(waiting_.front());
    waiting_.pop_front();
    return first;
  }
  void End() {
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }

 private:
  const size_t limit_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::unique_ptr<HttpConnection>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Writes one event. Returns false if the reader has not accepted it in time, or is gone.
bool WriteEvent(const std::string& data, const PageStreams& streams, httplib::DataSink& sink) {
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
bool SendNext(const HttpEventPages::mapped_type& next, PageStreams& streams,
              httplib::DataSink& sink) {
  try {
    const absl::StatusOr<std::string> data = next();
    return data.ok() && WriteEvent(*data, streams, sink);
  } catch (const std::exception&) {
    return false;
  }
}

// Returns the text by which the streams of a caller are counted: the names in its certificate, or
// its network. Not its token: where a certificate gives the role, any token would do.
std::string KeyOf(const HttpCaller& caller) {
  return caller.names.empty() ? NetworkOf(caller.peer)
                              : absl::StrCat("names ", absl::StrJoin(caller.names, ","));
}

// `caller` is the caller's KeyOf. `is_refused` decides about an open stream again, at each
// `permission_interval`.
void ServeEvents(const HttpEventPages::mapped_type& next, PageStreams& streams,
                 const std::string& caller, absl::Duration permission_interval,
                 std::function<bool()> is_refused, httplib::Response& answer) {
  answer.set_header("Cache-Control", "no-store");
  if (const absl::Status opened = streams.Open(caller); !opened.ok()) {
    answer.status = 503;
    answer.set_content(absl::StrCat(opened.message(), "\n"), "text/plain; charset=utf-8");
    return;
  }
  answer.set_chunked_content_provider(
      kEventType,
      [&next, &streams, permission_interval, is_refused = std::move(is_refused),
       next_decision = MonotonicNow() + permission_interval](size_t offset,
                                                             httplib::DataSink& sink) mutable {
        // The first event is due at once.
        if (offset != 0 && !streams.AwaitNext()) return false;
        if (MonotonicNow() >= next_decision) {
          if (is_refused()) return false;
          next_decision = MonotonicNow() + permission_interval;
        }
        return SendNext(next, streams, sink);
      },
      [&streams, caller](bool) { streams.Close(caller); });
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

// Accepts connections and receives their requests on one thread, without blocking: a peer that
// sends slowly, or nothing, occupies no other thread. The library would read each request on one of
// its threads, with no limit of its size or of the time for all of it, would queue any number of
// connections, and would stop listening after an error of accept().
class HttpServer::Connections : public httplib::Server {
 public:
  Connections(HttpEvents events, HttpSecurity security, HttpTimes times)
      : events_(std::move(events)),
        security_(std::move(security)),
        times_(times),
        tls_files_(security_.tls, security_.warn),
        streams_(events_.interval) {}
  ~Connections() override {
    streams_.End();
    requests_.End();
    probes_.End();
    stop_.Set();
    for (std::thread& thread : threads_) thread.join();
  }

  // Sets what is answered.
  void Serve(HttpPages pages) {
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& answer) {
      if (security_.refuse != nullptr) {
        const std::optional<HttpReply> refusal = security_.refuse(CallerOf(request), request.path);
        if (refusal.has_value()) {
          Fill(*refusal, answer);
          return HandlerResponse::Handled;
        }
      }
      if (request.method == "GET" || request.method == "HEAD") return HandlerResponse::Unhandled;
      // The library would parse the body.
      answer.status = 404;
      return HandlerResponse::Handled;
    });
    for (auto& [path, page] : pages) {
      Get(path, [page = std::move(page)](const httplib::Request&, httplib::Response& answer) {
        Fill(page(), answer);
      });
    }
    for (const auto& [path, next] : events_.pages) {
      Get(path, [this, &next = next](const httplib::Request& request, httplib::Response& answer) {
        if (request.method == "HEAD") {
          answer.set_header("Content-Type", kEventType);
          return;
        }
        HttpCaller caller = CallerOf(request);
        const std::string key = KeyOf(caller);
        ServeEvents(
            next, streams_, key, events_.permission_interval,
            [this, caller = std::move(caller), path = request.path] {
              return security_.refuse != nullptr && security_.refuse(caller, path).has_value();
            },
            answer);
      });
    }
  }

  // Listens on `address` and starts the threads. Returns the port.
  //
  // Errors:
  //   Unavailable        the address cannot be listened on
  //   ResourceExhausted  there is no memory for TLS
  absl::StatusOr<uint16_t> Listen(const HostPort& address) {
    if (!security_.tls.certificate.empty()) {
      tls_ = TlsContext(SSL_CTX_new(TLS_server_method()));
      if (tls_ == nullptr) return absl::ResourceExhaustedError("there is no memory for TLS");
      tls_files_.SetUp(*tls_);
    }
    // The library's default, SO_REUSEPORT, would let two processes share one port by mistake.
    set_socket_options([](int socket) {
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    const int port = address.port == 0                          ? bind_to_any_port(address.host)
                     : bind_to_port(address.host, address.port) ? address.port
                                                                : -1;
    listening_ = FileDescriptor(svr_sock_);
    // The library listens with a backlog of 5.
    if (port <= 0 || ::listen(listening_.get(), SOMAXCONN) != 0 ||
        fcntl(listening_.get(), F_SETFL, O_NONBLOCK) != 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", ToString(address),
                       " for HTTP: the port is in use, or the address is not one of this host"));
    }
    threads_.emplace_back([this] { Receive(); });
    threads_.emplace_back([this] { Answer(probes_); });
    for (size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Answer(requests_); });
    // For `top -H`.
    for (std::thread& thread : threads_) pthread_setname_np(thread.native_handle(), "http");
    return static_cast<uint16_t>(port);
  }

 private:
  // In the order of acceptance.
  using Arriving = std::vector<std::unique_ptr<HttpConnection>>;

  // Accepts connections until the end, and receives their requests.
  void Receive() {
    Arriving arriving;
    absl::Time accept_at = absl::InfinitePast();
    std::vector<pollfd> polled;
    while (true) {
      const bool accepts = MonotonicNow() >= accept_at;
      absl::Time wake = accepts ? absl::InfiniteFuture() : accept_at;
      // poll() ignores a negative descriptor.
      polled = {{stop_.descriptor(), POLLIN, 0}, {accepts ? listening_.get() : -1, POLLIN, 0}};
      for (const auto& connection : arriving) {
        polled.push_back({connection->socket(), connection->awaited(), 0});
        wake = std::min(wake, connection->deadline());
      }
      if (poll(polled.data(), polled.size(), PollTimeout(wake)) < 0) continue;  // EINTR
      if (polled[0].revents != 0) return;
      NetworkTurns turns;
      for (size_t i = 0; i < arriving.size(); ++i) {
        if (polled[i + 2].revents != 0 &&
            (!arriving[i]->is_handshaking() || turns.Take(arriving[i]->network()))) {
          ReceiveFrom(arriving[i]);
        }
        if (arriving[i] != nullptr && MonotonicNow() >= arriving[i]->deadline()) {
          arriving[i] = nullptr;
        }
      }
      std::erase(arriving, nullptr);
      if (polled[1].revents != 0 && !AcceptInto(arriving)) {
        accept_at = MonotonicNow() + kAcceptBackoff;
      }
    }
  }

  // Passes the connection on if its request has arrived, and ends it if it has failed.
  void ReceiveFrom(std::unique_ptr<HttpConnection>& connection) {
    switch (connection->Receive()) {
      case HttpConnection::Arrival::kGoesOn:
        return;
      case HttpConnection::Arrival::kFailed:
        connection = nullptr;
        return;
      case HttpConnection::Arrival::kEnded: {
        const bool is_probe = absl::c_linear_search(kProbes, connection->path());
        (is_probe ? probes_ : requests_).Push(std::move(connection));
      }
    }
  }

  // Ends the connection whose request has been arriving for longest, because one that is honest
  // needs little time: of `network` if it has kMostArrivingOfNetwork; of the network that has the
  // most if there are kMostArriving.
  static void MakeRoom(Arriving& arriving, const std::string& network) {
    std::vector<std::string> networks;
    for (const auto& one : arriving) networks.push_back(one->network());
    const std::optional<std::string> full =
        NetworkToEvict(networks, network, kMostArrivingOfNetwork, kMostArriving);
    if (!full.has_value()) return;
    arriving.erase(absl::c_find_if(
        arriving, [&](const auto& connection) { return connection->network() == *full; }));
  }

  // Accepts a few connections. Returns false after an error that may last.
  bool AcceptInto(Arriving& arriving) {
    for (int i = 0; i < kAtOnce; ++i) {
      FileDescriptor socket(
          accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.valid()) {
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      }
      TlsConnection tls(tls_ == nullptr ? nullptr : SSL_new(tls_.get()));
      if (tls_ != nullptr && tls == nullptr) continue;
      auto connection = std::make_unique<HttpConnection>(std::move(socket), std::move(tls),
                                                         MonotonicNow() + times_.request);
      MakeRoom(arriving, connection->network());
      arriving.push_back(std::move(connection));
    }
    return true;
  }

  // Answers the requests of `queue` until the end.
  void Answer(RequestQueue& queue) {
    while (const std::unique_ptr<HttpConnection> connection = queue.Pop()) {
      connection->SetAnswerDeadline(MonotonicNow() + times_.answer);
      Process(&Connections::process_request, *connection, [&](httplib::Request& request) {
        request.ssl = connection->tls();
        if (events_.pages.contains(request.path)) {
          connection->SetAnswerDeadline(absl::InfiniteFuture());
        }
      });
    }
  }

  // Called with the library's process_request, whose parameters depend on its version.
  using SetUp = std::function<void(httplib::Request&)>;
  void Process(bool (httplib::Server::*process)(httplib::Stream&, bool, bool&, const SetUp&),
               HttpConnection& connection, const SetUp& set_up) {
    bool closed = false;
    (this->*process)(connection, /*close_connection=*/true, closed, set_up);
  }
  void Process(bool (httplib::Server::*process)(httplib::Stream&, const std::string&, int,
                                                const std::string&, int, bool, bool&, const SetUp&),
               HttpConnection& connection, const SetUp& set_up) {
    std::string remote, local;
    int remote_port = 0, local_port = 0;
    connection.get_remote_ip_and_port(remote, remote_port);
    connection.get_local_ip_and_port(local, local_port);
    bool closed = false;
    (this->*process)(connection, remote, remote_port, local, local_port,
                     /*close_connection=*/true, closed, set_up);
  }

  const HttpEvents events_;
  const HttpSecurity security_;
  const HttpTimes times_;
  TlsFiles tls_files_;
  PageStreams streams_;
  // Null for plain text.
  TlsContext tls_;
  FileDescriptor listening_;
  StopEvent stop_;
  RequestQueue requests_{kMostWaiting};
  RequestQueue probes_{kMostProbes};
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(HostPort address, std::unique_ptr<Connections> connections)
    : address_(std::move(address)), connections_(std::move(connections)) {}

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HostPort& address,
                                                              HttpPages pages, HttpEvents events,
                                                              HttpSecurity security,
                                                              HttpTimes times) {
  auto connections = std::make_unique<Connections>(std::move(events), std::move(security), times);
  connections->Serve(std::move(pages));
  HostPort bound = address;
  SYNCGRADS_ASSIGN_OR_RETURN(bound.port, connections->Listen(address));
  return absl::WrapUnique(new HttpServer(std::move(bound), std::move(connections)));
}

}  // namespace syncgrads
