#include "worker/data_service/data_server.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/rpc/credentials.h"
#include "common/rpc/refuse_compressed.h"
#include "common/rpc/status.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "proto/served_data.grpc.pb.h"
#include "worker/data_service/served_rows_maker.h"

namespace syncgrads {
namespace {

// The largest message is a request for rows: enough for 100,000 of them.
constexpr int kMaxReceivedBytes = 1 << 20;
// The limit of calls on one connection. A worker has a connection for its call.
constexpr int kMaxStreams = 16;

// Cancels a call after a while, unless this object is destroyed before.
class CallDeadline {
 public:
  CallDeadline(grpc::ServerContext& call, absl::Duration timeout)
      : state_(std::make_shared<State>()) {
    {
      MutexLock lock(state_->mutex);
      state_->call = &call;
    }
    alarm_.Set(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                            gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN)),
               [state = state_](bool has_passed) {
                 MutexLock lock(state->mutex);
                 if (has_passed && state->call != nullptr) state->call->TryCancel();
               });
  }
  ~CallDeadline() {
    MutexLock lock(state_->mutex);
    state_->call = nullptr;
  }

 private:
  // The alarm's function may run after the destruction.
  struct State {
    Mutex mutex;
    grpc::ServerContext* call ABSL_GUARDED_BY(mutex) = nullptr;
  };

  const std::shared_ptr<State> state_;
  grpc::Alarm alarm_;
};

absl::Status OutOfMemory(absl::string_view to_do) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the data server has not enough memory ", to_do));
}

}  // namespace

class DataServer::Service : public v1::ServedData::Service {
 public:
  explicit Service(Options options) : options_(std::move(options)) {
    options_.job.data_host = nullptr;
  }

  uint64_t batches_made() const { return batches_made_.load(); }
  uint64_t calls() const { return calls_.load(); }
  // Changes when a batch is made, and when a call begins or ends.
  uint64_t activity() const { return activity_.load(); }

  grpc::Status Serve(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ServedDataReply, v1::ServedDataRequest>* stream) override {
    const uint64_t calls = ++calls_;
    ++activity_;
    const absl::Cleanup ended = [this] {
      ++activity_;
      --calls_;
    };
    if (calls > options_.max_calls) {
      return ToGrpc(absl::ResourceExhaustedError(absl::StrCat(
          calls - 1, " calls of this data server are open, the limit is ", options_.max_calls)));
    }
    try {
      return ToGrpc(ServeWorker(*context, *stream));
    } catch (const std::bad_alloc&) {
      return ToGrpc(OutOfMemory("to serve this worker's rows"));
    }
  }

 private:
  using Stream = grpc::ServerReaderWriter<v1::ServedDataReply, v1::ServedDataRequest>;

  absl::Status ServeWorker(grpc::ServerContext& context, Stream& stream) {
    v1::ServedDataRequest request;
    bool has_first = false;
    {
      const CallDeadline deadline(context, options_.open_timeout);
      has_first = stream.Read(&request);
    }
    if (!has_first || !request.has_open()) {
      return absl::InvalidArgumentError("the first request must be open");
    }
    if (!EqualSecrets(request.open().token(), options_.token)) {
      return absl::PermissionDeniedError("wrong token for this data server");
    }
    SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<ServedRowsMaker> maker,
                               ServedRowsMaker::Open(options_.job, request.open()));
    v1::ServedDataReply reply;
    *reply.mutable_opened() = maker->Describe();
    bool goes_on = stream.Write(reply);
    uint64_t batches = 0;
    while (goes_on && stream.Read(&request)) {
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
  std::atomic<uint64_t> batches_made_{0};
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> activity_{0};
};

struct DataServer::Listening {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

DataServer::DataServer() = default;

DataServer::~DataServer() {
  // Ends all calls at once, so that workers notice.
  if (listening_ != nullptr) listening_->server->Shutdown(std::chrono::system_clock::now());
}

absl::StatusOr<std::unique_ptr<DataServer>> DataServer::Start(Options options) {
  auto server = absl::WrapUnique(new DataServer());
  const uint16_t port = options.port;
  const std::string host = options.loopback_only ? "127.0.0.1" : "[::]";
  const std::shared_ptr<grpc::ServerCredentials> credentials = ServerCredentialsOf(options.tls);
  server->service_ = std::make_unique<Service>(std::move(options));
  auto listening = std::make_unique<Listening>();
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(absl::StrCat(host, ":", port), credentials, &listening->port);
  builder.SetMaxReceiveMessageSize(kMaxReceivedBytes);
  // A message with one of these compressions is refused before it is decompressed.
  RefuseCompressedMessages(builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.RegisterService(server->service_.get());
  listening->server = builder.BuildAndStart();
  if (listening->server == nullptr || listening->port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on port ", port));
  }
  server->listening_ = std::move(listening);
  return server;
}

uint16_t DataServer::port() const { return static_cast<uint16_t>(listening_->port); }

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
