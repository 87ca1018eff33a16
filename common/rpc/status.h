// Conversions between absl::Status and grpc::Status, whose codes have equal values.

#ifndef SYNCGRADS_COMMON_RPC_STATUS_H_
#define SYNCGRADS_COMMON_RPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace syncgrads {

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_STATUS_H_
