// Channels and statuses of gRPC, as this client wants them.

#ifndef SYNCGRADS_CLIENT_GRPC_CHANNEL_H_
#define SYNCGRADS_CLIENT_GRPC_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace syncgrads::client {

// A channel with a connection of its own, which goes with it; TCP with the kernel's
// congestion control unless one is named.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address,
                                          const std::string& congestion_control = "");

absl::Status FromGrpc(const grpc::Status& status);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_CHANNEL_H_
