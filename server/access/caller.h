// Who calls an RPC.

#ifndef SYNCGRADS_SERVER_ACCESS_CALLER_H_
#define SYNCGRADS_SERVER_ACCESS_CALLER_H_

#include <grpcpp/server_context.h>

#include <string>

#include "server/access/access.h"

namespace syncgrads::server {

// Returns the caller of an RPC. `token` is that in the request; if it is empty, the token of the
// metadata "authorization: Bearer TOKEN" is used.
Caller CallerOf(const grpc::CallbackServerContext& context, std::string token = "");

// Returns the host part of gRPC's name for a peer, such as "ipv4:10.0.0.1:5000" or
// "ipv6:%5B::1%5D:5000". For a peer without a host (on a unix socket), returns 127.0.0.1.
std::string HostOfPeer(const std::string& peer);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_ACCESS_CALLER_H_
