// Passes the connections that an Acceptor takes to a gRPC server.

#ifndef SYNCGRADS_COMMON_RPC_TAKEN_CONNECTIONS_H_
#define SYNCGRADS_COMMON_RPC_TAKEN_CONNECTIONS_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <array>
#include <cstddef>
#include <memory>

#include "common/file_descriptor.h"
#include "common/net/acceptor.h"

namespace syncgrads {

// Belongs to the server that is built with `builder`. Must outlive the Acceptor that calls Take.
class TakenConnections {
 public:
  TakenConnections(grpc::ServerBuilder& builder,
                   const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    for (auto& external : of_taker_) {
      external = builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    }
  }

  // See Acceptor::Take. Calls with different takers do not wait for each other.
  void Take(FileDescriptor connection, size_t taker) const {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.fd = connection.Release();
    of_taker_[taker]->HandleNewConnection(&parameters);
  }

 private:
  // gRPC 1.51 holds the lock of an ExternalConnectionAcceptor while it reads from a new connection.
  std::array<std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>, Acceptor::kTakers>
      of_taker_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_TAKEN_CONNECTIONS_H_
