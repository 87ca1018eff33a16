// absl::Status and grpc::Status have the same codes.

#ifndef SYNCGRADS_SERVER_SERVICE_STATUS_H_
#define SYNCGRADS_SERVER_SERVICE_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace syncgrads::server {

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_STATUS_H_
