// Converts the messages of a Follow stream (proto/control.proto) to the structs of the core and
// back, and dispatches the messages that the coordinator receives: those of Follow streams, and
// those of Join streams, which common/contract/signals.h converts.
//
// The functions have no state. ToProto and FromProto are pure; Dispatch calls the coordinator,
// which is thread-safe.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_SIGNALS_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_SIGNALS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "server/core/coordinator/coordinator.h"
#include "server/core/plan/group_preparation.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/step_norms.h"
#include "server/core/rounds/arrivals.h"

namespace syncgrads::server {

v1::PlanSignal ToProto(const PlanChange& change);
// Errors:
//   InvalidArgument  the signal is no change that this version supports, or its group plan is not
//                    valid
absl::StatusOr<PlanChange> FromProto(const v1::PlanSignal& signal);

v1::PlanSignal ToProto(const GroupPreparation& preparation);
// Converts the preparation of a signal that has one.
//
// Errors:
//   InvalidArgument  its group plan is not valid
absl::StatusOr<GroupPreparation> PreparationFromProto(const v1::PlanSignal& signal);
v1::ServerSignal ToProto(const GroupPrepared& prepared);
GroupPrepared FromProto(const v1::GroupPrepared& proto);
v1::ServerSignal ToProto(const StoreFailure& failure);
StoreFailure FromProto(const v1::StoreFailure& proto);

// Merges adjacent arrivals that differ only in the member into one message.
std::vector<v1::Arrived> ToProto(const std::vector<Arrival>& arrivals);
std::vector<Arrival> FromProto(const v1::Arrived& proto);

// The answer of a server to an EpochProposal.
v1::ServerSignal ToProto(const HeldRounds& held);

v1::Reduced ToProto(const std::vector<ReducedChunk>& chunks);
// Errors:
//   InvalidArgument  a chunk is in a norm stage that this version does not support, or has a
//                    different number of sums of values and of changes
absl::StatusOr<std::vector<ReducedChunk>> FromProto(const v1::Reduced& proto);

// Passes a message of a member's Join stream, after the hello, to the coordinator.
//
// Errors:
//   InvalidArgument  the message is a hello, or of a kind that this version does not support
absl::Status Dispatch(const v1::WorkerSignal& signal, const Coordinator::MemberKey& member,
                      Coordinator& coordinator);

// Passes a message of a server's Follow stream to the coordinator. `link` is the server's stream.
// If the signal is a hello, only its available bytes are passed on; AttachServer handles the rest.
//
// Errors:
//   InvalidArgument  the message is of a kind that this version does not support, or is a Reduced
//                    that is not valid
absl::Status Dispatch(const v1::ServerSignal& signal, ServerIndex server, const ServerLink* link,
                      Coordinator& coordinator);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_SIGNALS_H_
