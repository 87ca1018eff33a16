// A server-streaming call that is refused at once.

#ifndef SYNCGRADS_SERVER_SERVICE_REFUSED_STREAM_H_
#define SYNCGRADS_SERVER_SERVICE_REFUSED_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "common/rpc/status.h"

namespace syncgrads::server {

// Deletes itself.
template <typename Message>
class RefusedStream : public grpc::ServerWriteReactor<Message> {
 public:
  explicit RefusedStream(const absl::Status& status) { this->Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_REFUSED_STREAM_H_
