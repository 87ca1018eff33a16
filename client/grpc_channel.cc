#include "client/grpc_channel.h"

#include "common/net/congestion_control.h"
#include "third_party/grpc/socket_mutator.h"

namespace syncgrads::client {

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address,
                                          const std::string& congestion_control) {
  grpc::ChannelArguments arguments;
  // Channels with equal arguments would share one connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  // Without probing for bandwidth, a connection's window is 64 KiB and what is missing
  // of the message that is being read: little lies in the kernel, and it is in a cache
  // yet when it is read (docs/performance.md).
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  // A call that can be retried keeps what it has sent; the session resends by
  // itself, and must get its buffers back.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // How long one attempt to connect may take; the session makes the next.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A link that is dead without having been closed is noticed.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  if (!congestion_control.empty()) {
    arguments.SetSocketMutator(NewSocketMutator(
        [congestion_control](int socket) { SetCongestionControl(socket, congestion_control); }));
  }
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace syncgrads::client
