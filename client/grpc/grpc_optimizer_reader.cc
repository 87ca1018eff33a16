#include "client/grpc/grpc_optimizer_reader.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/grpc/grpc_channel.h"
#include "common/rpc/status.h"
#include "proto/admin.grpc.pb.h"

namespace syncgrads::client {
namespace {

class GrpcOptimizerReader : public OptimizerReader {
 public:
  GrpcOptimizerReader(const std::string& address, const ChannelSecurity& security,
                      const OptimizerRequest& request, absl::Duration timeout)
      : address_(address),
        channel_(NewChannel(address, security)),
        stub_(v1::Admin::NewStub(channel_)) {
    v1::ReadOptimizerRequest proto;
    proto.set_job(request.job);
    proto.set_token(request.token);
    proto.set_generation(ToNumber(request.generation));
    proto.set_group(ToNumber(request.group));
    proto.set_round(ToNumber(request.round));
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    stream_ = stub_->ReadOptimizer(&context_, proto);
  }

  ~GrpcOptimizerReader() override {
    if (ended_) return;
    context_.TryCancel();
    stream_->Finish().ok();  // the status does not matter
  }

  absl::StatusOr<uint32_t> AwaitHeld() override {
    v1::OptimizerChunk first;
    if (!stream_->Read(&first)) return EndStatus();
    return first.chunks();
  }

  absl::StatusOr<OptimizerChunk> Next() override {
    v1::OptimizerChunk message;
    if (!stream_->Read(&message)) return EndStatus();
    OptimizerChunk chunk;
    chunk.chunk = ChunkId{message.chunk()};
    chunk.updates.assign(message.updates().begin(), message.updates().end());
    for (std::string& slot : *message.mutable_slots()) chunk.slots.push_back(std::move(slot));
    return chunk;
  }

 private:
  absl::Status EndStatus() {
    if (ended_) return absl::OutOfRangeError("the stream has ended");
    ended_ = true;
    const absl::Status status = FromGrpc(stream_->Finish());
    if (status.ok()) return absl::OutOfRangeError("there are no more chunks");
    return absl::Status(status.code(),
                        absl::StrCat("the server at ", address_, ": ", status.message()));
  }

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::OptimizerChunk>> stream_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<OptimizerReader> OpenGrpcOptimizerReader(const std::string& address,
                                                         const ChannelSecurity& security,
                                                         const OptimizerRequest& request,
                                                         absl::Duration timeout) {
  return std::make_unique<GrpcOptimizerReader>(address, security, request, timeout);
}

}  // namespace syncgrads::client
