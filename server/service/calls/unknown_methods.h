// Calls of methods that no service has.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_UNKNOWN_METHODS_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_UNKNOWN_METHODS_H_

#include <grpcpp/generic/async_generic_service.h>

#include "common/names.h"
#include "common/net/open_connections.h"
#include "common/rpc/peer_address.h"

namespace syncgrads::server {

// Refuses them with UNIMPLEMENTED and the name of the method. They count towards the limit of calls
// on a connection as all others do. Thread-safe.
class UnknownMethods : public grpc::CallbackGenericService {
 public:
  // `connections` must outlive this object and its calls.
  explicit UnknownMethods(OpenConnections& connections) : connections_(connections) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Refusal(context, connections_);
  }

 private:
  class Refusal : public grpc::ServerGenericBidiReactor {
   public:
    Refusal(grpc::GenericCallbackServerContext* context, OpenConnections& connections)
        : call_(connections, EndpointOfPeer(context->peer())) {
      Finish({grpc::StatusCode::UNIMPLEMENTED,
              "there is no method " + Printable(context->method(), kMaxNameBytes)});
    }

    void OnDone() override { delete this; }

   private:
    const OpenConnections::Call call_;
  };

  OpenConnections& connections_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_UNKNOWN_METHODS_H_
