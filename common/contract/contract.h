// Conversions between the messages of the public contract (proto/) and the plain structs that the
// server's core and the client's state machine use. Thread-safe.

#ifndef SYNCGRADS_COMMON_CONTRACT_CONTRACT_H_
#define SYNCGRADS_COMMON_CONTRACT_CONTRACT_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/group/group.h"
#include "common/signals/membership.h"
#include "common/signals/protocol.h"
#include "proto/types.pb.h"

namespace syncgrads {

// Converts a policy for NaNs and infinities. If it is unspecified, returns OnBad::kReject.
//
// Errors:
//   InvalidArgument  this protocol version does not have the value
absl::StatusOr<OnBad> FromProto(v1::OnBad proto);

v1::Schedule ToProto(const RateSchedule& schedule);
RateSchedule FromProto(const v1::Schedule& proto);

v1::GroupSpec ToProto(const GroupSpec& spec);
// Converts a group's description. If the policy is missing, it is Sync. Does not check that the
// servers can serve the group: Validate does.
//
// Errors:
//   InvalidArgument  there are more tensors, compressions or factors than kMaxTensors: nothing has
//                    been copied; a dtype, reduction, codec or non_finite has a value that this
//                    protocol version does not have; or the update rule, or the kind of its
//                    optimizer, is missing
absl::StatusOr<GroupSpec> FromProto(const v1::GroupSpec& proto);

v1::GroupPlan ToProto(const GroupPlan& plan);
// Converts a group's plan, and computes its layout.
//
// Errors:
//   InvalidArgument  the group's description cannot be converted, or has no valid layout (see
//                    Layout::Create); or the chunks differ from those of the layout
absl::StatusOr<GroupPlan> FromProto(const v1::GroupPlan& proto);

// Converts an encoding. If top-k has no fraction, the fraction is kDefaultTopKFraction.
//
// Errors:
//   InvalidArgument  this protocol version does not have the codec
absl::StatusOr<Encoding> FromProto(const v1::Encoding& proto);

v1::Optimizer ToProto(const Optimizer& optimizer);
// Converts an optimizer. A hyperparameter that is missing has the default of the plain struct. Does
// not check the ranges: Validate does.
//
// Errors:
//   InvalidArgument  no kind is set
absl::StatusOr<Optimizer> FromProto(const v1::Optimizer& proto);

v1::Epoch ToProto(const Epoch& epoch);
Epoch FromProto(const v1::Epoch& proto);

v1::GroupRound ToProto(const GroupRound& round);
GroupRound FromProto(const v1::GroupRound& proto);
std::vector<GroupRound> FromProto(const google::protobuf::RepeatedPtrField<v1::GroupRound>& rounds);

v1::Error ToProto(const absl::Status& status);
// Converts an error. The result is never OK: a code that is not an error is read as Unknown.
absl::Status FromProto(const v1::Error& proto);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CONTRACT_CONTRACT_H_
