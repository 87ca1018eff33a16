// A group's description, and the plan that every member and server follows.

#ifndef SYNCGRADS_COMMON_GROUP_H_
#define SYNCGRADS_COMMON_GROUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/codec/encoding.h"
#include "common/ids.h"
#include "common/layout.h"
#include "common/policy.h"
#include "common/update_rule.h"

namespace syncgrads {

// What becomes of a contribution that is no good.
enum class OnBad {
  kReject = 1,  // its sender gets an error, and the round goes on without it
  kSkip = 2,    // it counts as a skip
  kAllow = 3,   // it counts like any other
};
absl::string_view NameOf(OnBad on_bad);

// A named set of tensors with an update rule and a round counter of its own.
struct GroupSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  UpdateRule rule = Reduction::kAverage;
  // 0: whatever the others ask for; if nobody does, the coordinator chooses.
  uint32_t chunk_bytes = 0;
  // Contributions made in another epoch than their round's are refused: for those
  // that depend on who is a member.
  bool one_epoch = false;
  Policy policy = Sync{};
  // One for each tensor, or none: what is sent of it is encoded.
  std::vector<Compression> compression;
  // What becomes of a contribution with a NaN or an infinity: of the whole chunk's,
  // or, by kSkip, of the spans that have one. Of averages and optimizers; other
  // groups take any number.
  OnBad non_finite = OnBad::kReject;
  // With an optimizer: if the norm of the averaged gradient, of all tensors together, is
  // more than this, it is scaled down to it. 0: never.
  double clip_norm = 0;
};

// Whether no chunk of the group can be updated before norms of the whole step are known:
// for clipping, or since its optimizer needs norms of whole tensors.
bool NeedsNorms(const GroupSpec& spec);

// The layout of the group's tensors. Errors: as Layout::Create.
absl::StatusOr<Layout> LayoutOf(const GroupSpec& spec);

// Whether a contribution that is not finite counts like any other.
bool TakesNonFinite(const GroupSpec& spec);

// InvalidArgument, naming the thing and its value, if the group cannot be
// served: an empty name, tensors that Layout::Create refuses, an average of
// integers, an optimizer over anything but f32 and f64 or with hyperparameters
// out of range, compression of anything but f32, or of results that are no averages
// or sums, norms where rounds do not close as one.
absl::Status Validate(const GroupSpec& spec);

// InvalidArgument, naming the first difference and both values, unless the two
// describe the same group. `theirs_owner` is who registered `theirs`.
absl::Status CheckAgreement(const GroupSpec& ours, const GroupSpec& theirs,
                            const std::string& theirs_owner);

// The first round that members push: 0 where an optimizer on the servers needs
// parameters first, else 1.
Round FirstRound(const UpdateRule& rule);

// A registered group. Immutable.
struct GroupPlan {
  GroupId id;
  GroupSpec spec;
  Layout layout;
  // servers[c] reduces chunk c.
  std::vector<ServerIndex> servers;
};

// Gives each chunk to the server that has the fewest bytes so far, the first of
// equals. `bytes` holds what each server has already, and is added to.
std::vector<ServerIndex> PlaceChunks(const Layout& layout, std::vector<uint64_t>& bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_GROUP_H_
