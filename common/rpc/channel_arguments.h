// What the channels of our gRPC clients have in common.

#ifndef SYNCGRADS_COMMON_RPC_CHANNEL_ARGUMENTS_H_
#define SYNCGRADS_COMMON_RPC_CHANNEL_ARGUMENTS_H_

#include <grpcpp/support/channel_arguments.h>

#include "absl/time/time.h"

namespace syncgrads {

// When a channel connects again, and when it takes its peer for dead.
struct ReconnectTimes {
  // The timeout of one attempt to connect.
  absl::Duration attempt;
  // The pause after the first attempt that fails. Later pauses grow, up to one second.
  absl::Duration first_pause;
  // A ping is sent when no byte has arrived for this time. If it is not answered within the same
  // time, the connection is closed.
  absl::Duration keepalive;
};

// Returns the arguments of a channel with a connection of its own, which is closed with the
// channel. Messages that are received may have any size.
grpc::ChannelArguments OwnConnection(const ReconnectTimes& times);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_CHANNEL_ARGUMENTS_H_
