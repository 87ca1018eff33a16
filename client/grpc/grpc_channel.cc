#include "client/grpc/grpc_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>

#include <utility>

#include "common/net/congestion_control.h"
#include "common/rpc/channel_arguments.h"
#include "third_party/grpc/socket_mutator.h"

namespace syncgrads::client {
namespace {

grpc::ChannelArguments Arguments() {
  // An attempt to connect has a timeout, and the session makes the next attempt.
  grpc::ChannelArguments arguments = OwnConnection({.attempt = absl::Seconds(5),
                                                    .first_pause = absl::Milliseconds(100),
                                                    .keepalive = absl::Seconds(10)});
  // Without bandwidth probing, the flow-control window of a connection is 64 KiB plus the missing
  // part of the message that is being read. So few bytes wait in the kernel, and they are still in
  // a cache when they are read (docs/performance.md).
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  // A call that gRPC can retry keeps the bytes that it has sent. The session retries by itself, and
  // needs its buffers released.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Pings are sent even while no data is sent.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

}  // namespace

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address,
                                          const ChannelSecurity& security,
                                          const std::string& congestion_control) {
  grpc::ChannelArguments arguments = Arguments();
  if (!congestion_control.empty()) {
    arguments.SetSocketMutator(NewSocketMutator(
        [congestion_control](int socket) { SetCongestionControl(socket, congestion_control); }));
  }
  return security.Connect(address, arguments);
}

std::shared_ptr<grpc::Channel> NewChannelOver(FileDescriptor socket) {
  grpc::ChannelArguments arguments = Arguments();
  // As for a channel that connects to a unix socket itself.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  return grpc::CreateCustomInsecureChannelFromFd("unix", socket.Release(), arguments);
}

std::shared_ptr<grpc::Channel> NewFailedChannel() {
  return grpc::CreateChannel("", /*creds=*/nullptr);
}

}  // namespace syncgrads::client
