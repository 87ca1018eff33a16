#include "client/grpc/grpc_transport.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/grpc/grpc_channel.h"
#include "client/grpc/grpc_control_stream.h"
#include "client/grpc/grpc_data_stream.h"
#include "client/grpc/grpc_link_probe.h"
#include "client/grpc/grpc_optimizer_reader.h"
#include "client/grpc/grpc_trace_report.h"
#include "client/local/local_data_stream.h"
#include "common/contract/round_wait.h"
#include "common/local/socket_loop.h"
#include "common/mutex.h"
#include "common/rpc/grpc_reaper.h"
#include "common/rpc/status.h"
#include "proto/admin.grpc.pb.h"

namespace syncgrads::client {
namespace {

constexpr absl::string_view kLocal = "local:";

// Results may have to be decoded on them. More threads than this are not faster than memory.
size_t LocalThreads() { return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 4); }

// One Explain request to a server. It has a connection of its own, so that it does not queue behind
// the bulk data that it asks about.
struct Question {
  Question(const std::string& address, const ChannelSecurity& security)
      : channel(NewChannel(address, security)), stub(v1::Admin::NewStub(channel)) {}

  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Admin::Stub> stub;
  grpc::ClientContext context;
  v1::ExplainRequest request;
  v1::ExplainReply reply;
};

class GrpcTransport : public Transport {
 public:
  GrpcTransport(std::string congestion_control, std::shared_ptr<Connections> connections)
      : congestion_control_(std::move(congestion_control)), connections_(std::move(connections)) {}

  std::shared_ptr<DataStream> OpenData(const std::string& address,
                                       std::shared_ptr<DataStreamEvents> events) override {
    absl::string_view name = address;
    if (absl::ConsumePrefix(&name, kLocal)) {
      if (SocketLoop* const loop = Loop()) {
        return std::make_shared<LocalDataStream>(std::string(name), *loop, std::move(events));
      }
      // There is no thread or descriptor for it: this stream closes, because no gRPC is spoken
      // there, and the next one uses TCP.
      return OpenGrpcData(absl::StrCat("unix-abstract:", name), std::move(events));
    }
    return OpenGrpcData(address, std::move(events));
  }

  std::shared_ptr<ControlStream> OpenControl(const std::string& address,
                                             std::shared_ptr<ControlStreamEvents> events) override {
    return reaper_.Make<GrpcControlStream>(
        connections_->Take(this, {address, Connections::Route::Purpose::kControl, ""}),
        std::move(events));
  }

  void Poll(absl::FunctionRef<bool()> is_done) override {
    SocketLoop* loop;
    {
      MutexLock lock(mutex_);
      loop = loop_.get();
    }
    if (loop != nullptr) loop->Poll(is_done);
  }

  void Explain(const std::string& address, const std::string& job, const std::string& token,
               GroupId group, absl::Duration timeout, ExplainAnswer answer) override {
    const std::shared_ptr<Question> question = reaper_.Make<Question>(address, security());
    question->request.set_job(job);
    question->request.set_token(token);
    question->request.set_group(ToNumber(group));
    question->context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    question->stub->async()->Explain(&question->context, &question->request, &question->reply,
                                     [question, answer = std::move(answer)](grpc::Status status) {
                                       if (!status.ok()) {
                                         answer(FromGrpc(status));
                                         return;
                                       }
                                       std::vector<RoundWait> waits;
                                       for (const v1::RoundWait& wait : question->reply.waits()) {
                                         waits.push_back(FromProto(wait));
                                       }
                                       answer(std::move(waits));
                                     });
  }

  std::optional<double> MeasureLink(const std::string& address, absl::Duration timeout) override {
    return MeasureGrpcLink(address, congestion_control_, timeout, security());
  }

  absl::Status ReportTrace(const std::string& address, const TraceReport& report,
                           absl::Duration timeout, const std::atomic<bool>& stop) override {
    return SendTraceReport(address, security(), report, timeout, stop);
  }

  std::unique_ptr<OptimizerReader> OpenOptimizer(const std::string& address,
                                                 const OptimizerRequest& request,
                                                 absl::Duration timeout) override {
    return OpenGrpcOptimizerReader(address, security(), request, timeout);
  }

 private:
  const ChannelSecurity& security() const { return connections_->security(); }

  std::shared_ptr<DataStream> OpenGrpcData(const std::string& address,
                                           std::shared_ptr<DataStreamEvents> events) {
    return reaper_.Make<GrpcDataStream>(
        connections_->Take(this,
                           {address, Connections::Route::Purpose::kData, congestion_control_}),
        std::move(events));
  }

  // The threads of local streams; null if the system has none.
  SocketLoop* Loop() {
    MutexLock lock(mutex_);
    if (loop_ == nullptr) {
      absl::StatusOr<std::unique_ptr<SocketLoop>> started = SocketLoop::Start(LocalThreads());
      if (started.ok()) loop_ = *std::move(started);
    }
    return loop_.get();
  }

  const std::string congestion_control_;
  const std::shared_ptr<Connections> connections_;
  GrpcReaper reaper_;
  Mutex mutex_;
  std::unique_ptr<SocketLoop> loop_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Transport> NewGrpcTransport(std::string congestion_control,
                                            std::shared_ptr<Connections> connections) {
  return std::make_unique<GrpcTransport>(std::move(congestion_control), std::move(connections));
}

}  // namespace syncgrads::client
