#include "client/grpc_link_probe.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"
#include "client/grpc_channel.h"
#include "proto/control.grpc.pb.h"

namespace syncgrads::client {
namespace {

constexpr size_t kBytes = 256 << 10;
// After the first, which connects and widens TCP's window.
constexpr int kMessages = 3;

}  // namespace

std::optional<double> MeasureGrpcLink(const std::string& address,
                                      const std::string& congestion_control,
                                      absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const auto stub = v1::Control::NewStub(NewChannel(address, congestion_control));
  v1::ProbeRequest request;
  request.set_padding(std::string(kBytes, '\0'));
  std::optional<double> fastest;
  for (int message = 0; message <= kMessages; ++message) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    context.set_wait_for_ready(true);
    v1::ProbeReply reply;
    const absl::Time begun = absl::Now();
    const grpc::Status status = stub->Probe(&context, request, &reply);
    const double rate = kBytes / std::max(1e-9, absl::ToDoubleSeconds(absl::Now() - begun));
    if (status.ok()) {
      if (message > 0) fastest = std::max(fastest.value_or(0), rate);
      continue;
    }
    const bool too_slow = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (too_slow && !fastest.has_value()) fastest = rate;
    break;
  }
  return fastest;
}

}  // namespace syncgrads::client
