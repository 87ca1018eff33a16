// Options for gRPC's sockets.

#ifndef SYNCGRADS_THIRD_PARTY_GRPC_SOCKET_MUTATOR_H_
#define SYNCGRADS_THIRD_PARTY_GRPC_SOCKET_MUTATOR_H_

#include <grpc/grpc.h>

#include <functional>

namespace syncgrads {

// Calls `set` with each socket before it connects or listens, on any thread. For
// grpc::ChannelArguments::SetSocketMutator, which owns it then.
grpc_socket_mutator* NewSocketMutator(std::function<void(int socket)> set);

}  // namespace syncgrads

#endif  // SYNCGRADS_THIRD_PARTY_GRPC_SOCKET_MUTATOR_H_
