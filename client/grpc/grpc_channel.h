// gRPC channels with the client's settings.

#ifndef SYNCGRADS_CLIENT_GRPC_GRPC_CHANNEL_H_
#define SYNCGRADS_CLIENT_GRPC_GRPC_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "common/rpc/credentials.h"

namespace syncgrads::client {

// Returns a channel that has a connection of its own, which is closed with the channel. If
// `congestion_control` is empty, TCP uses the kernel's default.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address,
                                          const ChannelSecurity& security,
                                          const std::string& congestion_control = "");

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_GRPC_CHANNEL_H_
