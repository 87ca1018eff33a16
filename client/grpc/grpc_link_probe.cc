#include "client/grpc/grpc_link_probe.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "client/grpc/grpc_channel.h"
#include "common/clock.h"
#include "proto/control.grpc.pb.h"

namespace syncgrads::client {
namespace {

constexpr size_t kBytes = 256 << 10;
// The number of messages that are measured. Two are sent before them: an empty one, which connects
// (a server limits the bytes of a connection that it does not know yet), and one that opens TCP's
// congestion window.
constexpr int kMessages = 3, kMessagesBefore = 2;

}  // namespace

std::optional<double> MeasureGrpcLink(const std::string& address,
                                      const std::string& congestion_control, absl::Duration timeout,
                                      const ChannelSecurity& security, LinkDirection direction) {
  const absl::Time deadline = MonotonicNow() + timeout;
  const std::shared_ptr<grpc::Channel> channel = NewChannel(address, security, congestion_control);
  const auto stub = v1::Control::NewStub(channel);
  v1::ProbeRequest request;
  std::optional<double> fastest;
  for (int message = 0; message < kMessagesBefore + kMessages; ++message) {
    if (message == 1 && direction == LinkDirection::kToServer) {
      request.set_padding(std::string(kBytes, '\0'));
    } else if (message == 1) {
      request.set_reply_bytes(kBytes);
    }
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + (deadline - MonotonicNow())));
    context.set_wait_for_ready(true);
    security.Authorize(context);
    v1::ProbeReply reply;
    const absl::Time begun = MonotonicNow();
    const grpc::Status status = stub->Probe(&context, request, &reply);
    const double rate = kBytes / std::max(1e-9, absl::ToDoubleSeconds(MonotonicNow() - begun));
    if (status.ok()) {
      if (reply.padding().size() != request.reply_bytes()) return std::nullopt;
      if (message >= kMessagesBefore) fastest = std::max(fastest.value_or(0), rate);
      continue;
    }
    // Without a connection or a message with bytes, the time says nothing about the link's rate.
    const bool too_slow = message > 0 &&
                          status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
                          channel->GetState(false) == GRPC_CHANNEL_READY;
    if (too_slow && !fastest.has_value()) fastest = rate;
    break;
  }
  return fastest;
}

}  // namespace syncgrads::client
