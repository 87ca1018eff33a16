// Measures the throughput of the link to a server.

#ifndef SYNCGRADS_CLIENT_GRPC_GRPC_LINK_PROBE_H_
#define SYNCGRADS_CLIENT_GRPC_GRPC_LINK_PROBE_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/credentials.h"

namespace syncgrads::client {

enum class LinkDirection { kToServer, kFromServer };

// Estimates the throughput in bytes per second: the fastest of three 256 KiB messages after a
// warm-up, in requests or in replies. Only tells slow links from fast ones: the result is too high
// if the link lets a burst pass, and too low if the cost of a message exceeds that of its bytes.
//
// Blocks for `timeout` at most. If no message got through in that time, returns an upper bound.
// nullopt if the server cannot be reached or returns an error, or if it is of a version that sends
// nothing in its replies.
std::optional<double> MeasureGrpcLink(const std::string& address,
                                      const std::string& congestion_control, absl::Duration timeout,
                                      const ChannelSecurity& security = ChannelSecurity(),
                                      LinkDirection direction = LinkDirection::kToServer);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_GRPC_LINK_PROBE_H_
