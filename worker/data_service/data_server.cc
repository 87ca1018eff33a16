#include "worker/data_service/data_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/net/acceptor.h"
#include "common/net/address.h"
#include "common/net/listening_sockets.h"
#include "common/net/open_connections.h"
#include "common/net/strangers.h"
#include "common/net/wrong_tokens.h"
#include "common/rpc/call_counts.h"
#include "common/rpc/credentials.h"
#include "common/rpc/peer_address.h"
#include "common/rpc/refuse_compressed.h"
#include "common/rpc/status.h"
#include "common/rpc/taken_connections.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "common/tls/tls_copies.h"
#include "proto/served_data.grpc.pb.h"
#include "worker/data_service/served_rows_maker.h"
#include "worker/data_service/shown_token.h"

namespace syncgrads {
namespace {

// The largest message is a request for rows: enough for 100,000 of them.
constexpr int kMaxReceivedBytes = 1 << 20;
// The maximum size of what the first message has beside the token and the server's own description
// of the data: the job's name, numbers, and the difference of a description that is not equal.
constexpr size_t kOpeningBytes = 16 << 10;
// The time for the rest of a first message that has more than a stranger's bytes. The largest one,
// 1 MiB, needs 4 Mbit/s.
constexpr absl::Duration kTimeToOpen = absl::Seconds(2);
constexpr char kServe[] = "/syncgrads.v1.ServedData/Serve";
// The limit of calls on one connection. A worker has a connection for its call.
constexpr int kMaxStreams = 16;
// The threads that gRPC needs beside those in which calls are served.
constexpr int kThreads = 16;
// The name in a certificate that gives the role of a worker, as for ps-server.
constexpr char kWorkerName[] = "syncgrads:worker";
// How long a connection may take until its first frame of HTTP/2.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(10);

absl::Status OutOfMemory(absl::string_view to_do) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the data server has not enough memory ", to_do));
}

}  // namespace

// Implements v1::ServedData, but receives requests as bytes: they are parsed only after the peer
// has shown that it may read the rows.
class DataServer::Service : public grpc::Service {
 public:
  Service(Options options, Strangers& strangers)
      : options_(std::move(options)),
        max_first_bytes_(options_.job.file.data().ByteSizeLong() + options_.token.size() +
                         kOpeningBytes),
        strangers_(strangers),
        opening_(options_.opening),
        wrong_tokens_(options_.warn) {
    options_.job.data_host = nullptr;
    // As the constructor of v1::ServedData::Service, with another type of requests.
    using Handler =
        grpc::internal::BidiStreamingHandler<Service, grpc::ByteBuffer, v1::ServedDataReply>;
    const auto serve = [](Service* service, grpc::ServerContext* context, Stream* stream) {
      return service->Serve(*context, *stream);
    };
    AddMethod(new grpc::internal::RpcServiceMethod(
        kServe, grpc::internal::RpcMethod::BIDI_STREAMING, new Handler(serve, this)));
  }

  uint64_t batches_made() const { return batches_made_.load(); }
  // The number of calls whose first message was accepted.
  uint64_t calls() const { return calls_.load(); }
  // Changes when a batch is made, and when such a call begins or ends.
  uint64_t activity() const { return activity_.load(); }

 private:
  using Stream = grpc::ServerReaderWriter<v1::ServedDataReply, grpc::ByteBuffer>;

  grpc::Status Serve(grpc::ServerContext& context, Stream& stream) {
    try {
      return ToGrpc(ServeWorker(context, stream));
    } catch (const std::bad_alloc&) {
      return ToGrpc(OutOfMemory("to serve this worker's rows"));
    }
  }

  absl::Status ServeWorker(grpc::ServerContext& context, Stream& stream) {
    const std::string peer = AddressOfPeer(context.peer());
    const std::string connection = EndpointOfPeer(context.peer());
    strangers_.Begin(connection);
    grpc::ByteBuffer message;
    bool has_first = false;
    {
      const OpeningCalls::Entry opening(opening_, NetworkOf(peer), context);
      has_first = stream.Read(&message);
    }
    if (!has_first) return absl::InvalidArgumentError("the first request must be open");
    SYNCGRADS_ASSIGN_OR_RETURN(const std::string token, FindShownToken(message));
    SYNCGRADS_RETURN_IF_ERROR(CheckPeer(context, token, peer));
    strangers_.Admit(connection);
    // Only calls that may read the rows count: others cannot use up the limit.
    const uint64_t calls = ++calls_;
    ++activity_;
    const absl::Cleanup ended = [this] {
      ++activity_;
      --calls_;
    };
    if (calls > options_.max_calls) {
      return absl::ResourceExhaustedError(absl::StrCat(
          calls - 1, " calls of this data server are open, the limit is ", options_.max_calls));
    }
    return ServeRows(context, stream, message);
  }

  // Whether the peer may read the rows: it has the token, or the role of a worker in its
  // certificate if there is no token.
  absl::Status CheckPeer(const grpc::ServerContext& context, const std::string& token,
                         const std::string& peer) {
    if (options_.token.empty() && !options_.tls.client_ca.empty()) return CheckRole(context);
    if (EqualSecrets(token, options_.token)) return absl::OkStatus();
    absl::Status wrong = absl::PermissionDeniedError("wrong token for this data server");
    // A call without a token is no guess.
    return token.empty() ? wrong : wrong_tokens_.Refuse(peer, std::move(wrong));
  }

  static absl::Status CheckRole(const grpc::ServerContext& context) {
    const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
    if (peer != nullptr && peer->IsPeerAuthenticated()) {
      for (const grpc::string_ref& name :
           peer->FindPropertyValues("x509_subject_alternative_name")) {
        if (name == kWorkerName) return absl::OkStatus();
      }
    }
    return absl::PermissionDeniedError(
        absl::StrCat("this data server needs a certificate with the URI ", kWorkerName,
                     ", or, if it has --token_file, that token"));
  }

  // Without a token, everybody on this host may open rows. So the first message is parsed only if
  // it is not much larger than one that is accepted.
  absl::Status ParseFirst(grpc::ByteBuffer& message, v1::ServedDataRequest& request) const {
    if (message.Length() > max_first_bytes_) {
      return absl::FailedPreconditionError(
          absl::StrCat("the request to open has ", message.Length(), " bytes, but at most ",
                       max_first_bytes_, " with the data of job \"", options_.job.file.name(),
                       "\", which this server has: give the worker the same job file"));
    }
    SYNCGRADS_RETURN_IF_ERROR(Parse(message, request));
    if (request.has_open()) return absl::OkStatus();
    return absl::InvalidArgumentError("the first request must be open");
  }

  static absl::Status Parse(grpc::ByteBuffer& message, v1::ServedDataRequest& request) {
    grpc::ProtoBufferReader bytes(&message);
    if (request.ParseFromZeroCopyStream(&bytes)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("a request of ", message.Length(), " bytes is malformed"));
  }

  // Answers the first request, which is `message`, and those that follow.
  absl::Status ServeRows(grpc::ServerContext& context, Stream& stream, grpc::ByteBuffer& message) {
    v1::ServedDataRequest request;
    SYNCGRADS_RETURN_IF_ERROR(ParseFirst(message, request));
    SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<ServedRowsMaker> maker,
                               ServedRowsMaker::Open(options_.job, request.open()));
    v1::ServedDataReply reply;
    *reply.mutable_opened() = maker->Describe();
    bool goes_on = stream.Write(reply);
    uint64_t batches = 0;
    while (goes_on && stream.Read(&message)) {
      SYNCGRADS_RETURN_IF_ERROR(Parse(message, request));
      if (!request.has_ask()) return absl::InvalidArgumentError("the data is already open");
      SYNCGRADS_ASSIGN_OR_RETURN(*reply.mutable_rows(), maker->Make(request.ask()));
      ++batches_made_;
      ++activity_;
      ++batches;
      // Flow control: Write blocks until the worker has room for the batch.
      goes_on = stream.Write(reply);
    }
    if (context.IsCancelled()) return absl::CancelledError("the worker has disconnected");
    reply.mutable_end()->set_batches(batches);
    stream.Write(reply);
    return absl::OkStatus();
  }

  Options options_;
  const size_t max_first_bytes_;
  Strangers& strangers_;
  OpeningCalls opening_;
  WrongTokens wrong_tokens_;
  std::atomic<uint64_t> batches_made_{0};
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> activity_{0};
};

struct DataServer::Listening {
  uint16_t port = 0;
  Strangers strangers{{.streams = 2 * kMaxStreams, .grace_with_stream = kTimeToOpen}};
  std::optional<OpenConnections> connections;
  std::optional<TlsCopies> tls;
  std::optional<TakenConnections> taken_connections;
  std::unique_ptr<grpc::Server> server;
  // Destroyed first: it no longer passes connections to gRPC.
  std::unique_ptr<Acceptor> acceptor;
};

DataServer::DataServer() = default;

DataServer::~DataServer() {
  if (listening_ == nullptr) return;
  listening_->acceptor = nullptr;
  // Ends all calls at once, so that workers notice.
  listening_->server->Shutdown(std::chrono::system_clock::now());
}

absl::StatusOr<std::unique_ptr<DataServer>> DataServer::Start(Options options) {
  if (options.warn == nullptr) options.warn = [](const std::string&) {};
  auto server = absl::WrapUnique(new DataServer());
  // A worker may be stopped, and read nothing, for longer than ListenOptions::user_timeout.
  SYNCGRADS_ASSIGN_OR_RETURN(ListeningSockets sockets,
                             ListenTcp({.bind = options.loopback_only ? "127.0.0.1" : "[::]",
                                        .port = options.port,
                                        .user_timeout = absl::ZeroDuration()}));
  auto listening = std::make_unique<Listening>();
  listening->port = sockets.port;
  grpc::ServerBuilder builder;
  listening->tls.emplace(options.tls, TlsSide::kListens, options.warn);
  listening->connections.emplace(ConnectionLimits{}, options.warn);
  listening->taken_connections.emplace(builder, ServerCredentialsOf(listening->tls->options()));
  // The time to complete the TLS handshake and to send the first frame of HTTP/2.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(kHandshakeTimeout)));
  builder.SetMaxReceiveMessageSize(kMaxReceivedBytes);
  // A message with one of these compressions is refused before it is decompressed.
  RefuseCompressedMessages(builder);
  CountCalls(builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  // Each call has a thread while it is served, also one whose peer resets it at once. Beyond these,
  // calls end with RESOURCE_EXHAUSTED.
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(static_cast<int>(options.max_calls + options.opening.calls) + kThreads);
  builder.SetResourceQuota(quota);
  const Acceptor::Warn warn = options.warn;
  server->service_ = std::make_unique<Service>(std::move(options), listening->strangers);
  builder.RegisterService(server->service_.get());
  listening->server = builder.BuildAndStart();
  if (listening->server == nullptr) {
    return absl::UnavailableError("gRPC could not start the data server");
  }
  listening->acceptor =
      std::make_unique<Acceptor>(std::move(sockets.sockets), *listening->connections,
                                 &listening->strangers, CallsOfNewestServer(), warn,
                                 [&to = *listening->taken_connections](
                                     FileDescriptor connection, bool /*is_local*/, size_t taker) {
                                   to.Take(std::move(connection), taker);
                                 });
  server->listening_ = std::move(listening);
  return server;
}

uint16_t DataServer::port() const { return listening_->port; }

uint64_t DataServer::batches_made() const { return service_->batches_made(); }

bool DataServer::AwaitIdle(absl::Duration timeout, absl::FunctionRef<bool()> should_stop) const {
  constexpr absl::Duration kPoll = absl::Milliseconds(20);
  uint64_t activity = service_->activity();
  absl::Time deadline = MonotonicNow() + timeout;
  while (service_->calls() > 0) {
    if (service_->activity() != activity) {
      activity = service_->activity();
      deadline = MonotonicNow() + timeout;
    }
    if (should_stop() || MonotonicNow() >= deadline) return false;
    absl::SleepFor(kPoll);
  }
  return true;
}

}  // namespace syncgrads
