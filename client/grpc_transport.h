// The transport over gRPC: the only part of the client that knows gRPC and
// protobuf.

#ifndef SYNCGRADS_CLIENT_GRPC_TRANSPORT_H_
#define SYNCGRADS_CLIENT_GRPC_TRANSPORT_H_

#include <memory>

#include "client/transport.h"

namespace syncgrads::client {

std::unique_ptr<Transport> NewGrpcTransport();

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_TRANSPORT_H_
