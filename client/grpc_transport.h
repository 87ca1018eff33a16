// The transport over gRPC: the only part of the client that knows gRPC and
// protobuf.

#ifndef SYNCGRADS_CLIENT_GRPC_TRANSPORT_H_
#define SYNCGRADS_CLIENT_GRPC_TRANSPORT_H_

#include <memory>
#include <string>

#include "client/grpc_connections.h"
#include "client/transport.h"

namespace syncgrads::client {

// `congestion_control` is that of the data streams, as NewChannel takes it; `connections`
// are those that streams go over, the transport's own if it is null.
std::unique_ptr<Transport> NewGrpcTransport(std::string congestion_control = "",
                                            std::shared_ptr<Connections> connections = nullptr);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_TRANSPORT_H_
