// One ReadOptimizer stream over gRPC.

#ifndef SYNCGRADS_CLIENT_GRPC_GRPC_OPTIMIZER_READER_H_
#define SYNCGRADS_CLIENT_GRPC_GRPC_OPTIMIZER_READER_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/link/transport.h"
#include "common/rpc/credentials.h"

namespace syncgrads::client {

// Opens the stream on a connection of its own.
std::unique_ptr<OptimizerReader> OpenGrpcOptimizerReader(const std::string& address,
                                                         const ChannelSecurity& security,
                                                         const OptimizerRequest& request,
                                                         absl::Duration timeout);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_GRPC_OPTIMIZER_READER_H_
