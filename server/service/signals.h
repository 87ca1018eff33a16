// Between the control plane's messages (proto/control.proto) and the core: its structs,
// and what the coordinator does about what members and servers say.

#ifndef SYNCGRADS_SERVER_SERVICE_SIGNALS_H_
#define SYNCGRADS_SERVER_SERVICE_SIGNALS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "proto/control.pb.h"
#include "server/core/arrivals.h"
#include "server/core/coordinator.h"
#include "server/core/job_signal.h"
#include "server/core/plan_change.h"
#include "server/core/round_wait.h"
#include "server/core/step_norms.h"

namespace syncgrads::server {

v1::JobSignal ToProto(Generation generation, const JobSignal& signal);
Introduction FromProto(const v1::Hello& hello);
v1::Hello ToProto(const Introduction& introduction);

v1::PlanSignal ToProto(const PlanChange& change);
// InvalidArgument if the change is of a kind, or has a plan, that this version does
// not know.
absl::StatusOr<PlanChange> FromProto(const v1::PlanSignal& signal);

std::vector<GroupRound> RoundsFromProto(
    const google::protobuf::RepeatedPtrField<v1::GroupRound>& rounds);

CheckpointReport FromProto(const v1::CheckpointReport& report);

// Neighbours that differ in the member alone become one message.
std::vector<v1::Arrived> ToProto(const std::vector<Arrival>& arrivals);
std::vector<Arrival> FromProto(const v1::Arrived& proto);

// What a server answers to a proposal.
v1::ServerSignal ToProto(const HeldRounds& held);

v1::Reduced ToProto(const std::vector<ReducedChunk>& chunks);
// InvalidArgument if a chunk is in a stage that this version does not know, or has not as
// many sums of the one kind as of the other.
absl::StatusOr<std::vector<ReducedChunk>> FromProto(const v1::Reduced& proto);

v1::RoundWait ToProto(const RoundWait& wait);

// Does what a member says on its Join stream, once it has said hello. InvalidArgument if
// that is another hello, or of no kind that this version knows.
absl::Status Hear(const v1::WorkerSignal& signal, const Coordinator::MemberKey& member,
                  Coordinator& coordinator);

// The same of what a server says on its Follow stream, whose link is `link`; of a hello,
// only what room it has. InvalidArgument also as FromProto's of Reduced.
absl::Status Hear(const v1::ServerSignal& signal, ServerIndex server, const ServerLink* link,
                  Coordinator& coordinator);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_SIGNALS_H_
