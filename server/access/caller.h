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

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_ACCESS_CALLER_H_
