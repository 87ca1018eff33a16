// The transport over gRPC; for local streams, it uses client/local. Only this part of the client
// (grpc_*, signals_proto) uses gRPC and protobuf.

#ifndef SYNCGRADS_CLIENT_GRPC_GRPC_TRANSPORT_H_
#define SYNCGRADS_CLIENT_GRPC_GRPC_TRANSPORT_H_

#include <memory>
#include <string>

#include "client/grpc/grpc_connections.h"
#include "client/link/transport.h"

namespace syncgrads::client {

// `congestion_control` is TCP's for the data streams; empty: the kernel's default. Control and data
// streams use `connections`; other calls have connections of their own, with the same security.
std::unique_ptr<Transport> NewGrpcTransport(std::string congestion_control,
                                            std::shared_ptr<Connections> connections);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_GRPC_TRANSPORT_H_
