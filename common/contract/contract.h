// Between the contract's messages (proto/) and the plain structs that the server's
// core and the client's state machine use.

#ifndef SYNCGRADS_COMMON_CONTRACT_CONTRACT_H_
#define SYNCGRADS_COMMON_CONTRACT_CONTRACT_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/group.h"
#include "common/membership.h"
#include "common/protocol.h"
#include "proto/types.pb.h"

namespace syncgrads {

// InvalidArgument for a value that this version does not know.
absl::StatusOr<OnBad> FromProto(v1::OnBad proto);

v1::GroupSpec ToProto(const GroupSpec& spec);
// InvalidArgument if a field has a value that this version does not know. Does
// not check that the group can be served: see Validate.
absl::StatusOr<GroupSpec> FromProto(const v1::GroupSpec& proto);

v1::GroupPlan ToProto(const GroupPlan& plan);
// InvalidArgument also if the chunks are not those of the group's layout.
absl::StatusOr<GroupPlan> FromProto(const v1::GroupPlan& proto);

// InvalidArgument if the codec is not known. The fraction of top-k that is not given is
// the default.
absl::StatusOr<Encoding> FromProto(const v1::Encoding& proto);

v1::Optimizer ToProto(const Optimizer& optimizer);
// InvalidArgument if no kind is set.
absl::StatusOr<Optimizer> FromProto(const v1::Optimizer& proto);

v1::Epoch ToProto(const Epoch& epoch);
Epoch FromProto(const v1::Epoch& proto);

v1::GroupRound ToProto(const GroupRound& round);
GroupRound FromProto(const v1::GroupRound& proto);

v1::Error ToProto(const absl::Status& status);
absl::Status FromProto(const v1::Error& proto);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CONTRACT_CONTRACT_H_
