// The token in the first message of a call to a data server.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_SHOWN_TOKEN_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_SHOWN_TOKEN_H_

#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "absl/status/statusor.h"

namespace syncgrads {

// Returns the token in `message`, a serialized ServedDataRequest that opens rows; empty if it has
// none. Nothing else is parsed, because a parsed message may take dozens of times its bytes.
// So what follows the token may be malformed.
//
// Errors:
//   InvalidArgument  the message does not open rows, or is malformed
absl::StatusOr<std::string> FindShownToken(grpc::ByteBuffer& message);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVICE_SHOWN_TOKEN_H_
