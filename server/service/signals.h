// Between the control plane's messages (proto/control.proto) and the core's
// structs.

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

v1::RoundWait ToProto(const RoundWait& wait);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_SIGNALS_H_
