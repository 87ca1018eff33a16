// Between the control plane's messages and the structs of signals.h.

#ifndef SYNCGRADS_CLIENT_SIGNALS_PROTO_H_
#define SYNCGRADS_CLIENT_SIGNALS_PROTO_H_

#include <optional>

#include "absl/status/statusor.h"
#include "client/signals.h"
#include "proto/control.pb.h"

namespace syncgrads::client {

v1::WorkerSignal ToProto(const WorkerSignal& signal);

// Nothing for a kind that this version does not know. InvalidArgument if it is
// malformed.
absl::StatusOr<std::optional<JobSignal>> FromProto(const v1::JobSignal& proto);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SIGNALS_PROTO_H_
