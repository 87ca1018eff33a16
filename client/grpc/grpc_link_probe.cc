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
// The number of messages that are measured. One more is sent before them: it connects and opens
// TCP's congestion window.
constexpr int kMessages = 3;

}  // namespace

std::optional<double> MeasureGrpcLink(const std::string& address,
                                      const std::string& congestion_control, absl::Duration timeout,
                                      const ChannelSecurity& security, LinkDirection direction) {
  const absl::Time deadline = MonotonicNow() + timeout;
  const std::shared_ptr<grpc::Channel> channel = NewChannel(address, security, congestion_control);
  const auto stub = v1::Control::NewStub(channel);
  v1::ProbeRequest request;
  if (direction == LinkDirection::kToServer) {
    request.set_padding(std::string(kBytes, '\0'));
  } else {
    request.set_reply_bytes(kBytes);
  }
  std::optional<double> fastest;
  for (int message = 0; message <= kMessages; ++message) {
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
      if (message > 0) fastest = std::max(fastest.value_or(0), rate);
      continue;
    }
    // Without a connection, the time says nothing about the link's rate.
    const bool too_slow = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
                          channel->GetState(false) == GRPC_CHANNEL_READY;
    if (too_slow && !fastest.has_value()) fastest = rate;
    break;
  }
  return fastest;
}

}  // namespace syncgrads::client
