// gRPC channels with the client's settings.

#ifndef SYNCGRADS_CLIENT_GRPC_GRPC_CHANNEL_H_
#define SYNCGRADS_CLIENT_GRPC_GRPC_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "common/file_descriptor.h"
#include "common/rpc/credentials.h"

namespace syncgrads::client {

// Returns a channel that has a connection of its own, which is closed with the channel. If
// `congestion_control` is empty, TCP uses the kernel's default.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address,
                                          const ChannelSecurity& security,
                                          const std::string& congestion_control = "");

// Returns a channel over `socket`, which is connected to a unix socket. It has the same settings,
// does not connect again, and has no connectivity state: gRPC logs an error if that is read.
std::shared_ptr<grpc::Channel> NewChannelOver(FileDescriptor socket);

// Returns a channel on which each call fails.
std::shared_ptr<grpc::Channel> NewFailedChannel();

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_GRPC_CHANNEL_H_
