// Conversions between the messages of a Join stream (proto/control.proto) and the plain structs of
// common/signals/signals.h. Thread-safe.

#ifndef SYNCGRADS_COMMON_CONTRACT_SIGNALS_H_
#define SYNCGRADS_COMMON_CONTRACT_SIGNALS_H_

#include <optional>

#include "absl/status/statusor.h"
#include "common/signals/signals.h"
#include "proto/control.pb.h"

namespace syncgrads {

v1::Hello ToProto(const Hello& hello);
// Checks nothing; the coordinator does.
Hello FromProto(const v1::Hello& proto);

v1::WorkerSignal ToProto(const WorkerSignal& signal);
// Errors:
//   InvalidArgument  this protocol version does not have the kind of the signal; or the description
//                    of a group cannot be converted; or CheckFigures refuses the figures of a
//                    heartbeat
absl::StatusOr<WorkerSignal> FromProto(const v1::WorkerSignal& proto);

// Registered::plan must not be null.
v1::JobSignal ToProto(Generation generation, const JobSignal::Kind& kind);
// Returns nullopt if this protocol version does not have the kind of the signal: workers ignore
// such a signal.
//
// Errors:
//   InvalidArgument  a Welcome names no server; or the plan of a group cannot be converted
absl::StatusOr<std::optional<JobSignal>> FromProto(const v1::JobSignal& proto);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CONTRACT_SIGNALS_H_
