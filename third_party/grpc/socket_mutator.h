// Sets options of gRPC's sockets.

#ifndef SYNCGRADS_THIRD_PARTY_GRPC_SOCKET_MUTATOR_H_
#define SYNCGRADS_THIRD_PARTY_GRPC_SOCKET_MUTATOR_H_

#include <grpc/grpc.h>

#include <functional>

namespace syncgrads {

// Returns a mutator that calls `set` with each socket before it connects or listens. `set` may be
// called on any thread. Pass the result to grpc::ChannelArguments::SetSocketMutator, which takes
// ownership of it.
grpc_socket_mutator* NewSocketMutator(std::function<void(int socket)> set);

}  // namespace syncgrads

#endif  // SYNCGRADS_THIRD_PARTY_GRPC_SOCKET_MUTATOR_H_
