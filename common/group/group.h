// The description of a group, and the plan that every member and server follows.

#ifndef SYNCGRADS_COMMON_GROUP_GROUP_H_
#define SYNCGRADS_COMMON_GROUP_GROUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/codec/encoding.h"
#include "common/group/layout.h"
#include "common/group/policy.h"
#include "common/ids.h"
#include "common/optim/optimizer.h"
#include "common/optim/rate_schedule.h"
#include "common/update_rule.h"

namespace syncgrads {

// What the servers do with a contribution that has a NaN or an infinity.
enum class OnBad {
  kReject = 1,  // refuse it: its sender gets an error, and the round continues without it
  kSkip = 2,    // count it as a skip
  kAllow = 3,   // count it like any other contribution
};
absl::string_view NameOf(OnBad on_bad);

// A named set of tensors with an update rule, a policy and a round counter of its own.
struct GroupSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  UpdateRule rule = Reduction::kAverage;
  // 0 agrees with any size that another member registers. If every member registers 0, the
  // coordinator chooses the size.
  uint32_t chunk_bytes = 0;
  // See ChunkSizes::first_bytes. 0 agrees with any size that another member registers before.
  uint32_t first_chunk_bytes = 0;
  // If true, a contribution that was made in another epoch than its round's is refused with Aborted
  // and has to be made again. For values that depend on the list of members.
  bool one_epoch = false;
  Policy policy = Sync{};
  // One entry for each tensor, or empty for no compression.
  std::vector<Compression> compression;
  // Averages, sums and optimizers only: what happens to a contribution with a NaN or an infinity.
  // kReject refuses the whole contribution to the chunk. kSkip skips only the spans that have such
  // a number. Groups with other rules accept any number.
  OnBad non_finite = OnBad::kReject;
  // Optimizers only: if the norm of the averaged gradient, over all tensors together, is larger
  // than this, the gradient is scaled down to this norm. 0 means no clipping.
  double clip_norm = 0;
  // The members multiply learning rates of their own by the job's factor (LearningRate), and an
  // optimizer on the servers does not. False: an optimizer on the servers does.
  bool members_scale_rate = false;
  // Optimizers on the servers only: how the learning rate changes. A step of the schedule is an
  // update of a tensor; with the policy Staleness, each gradient is one.
  RateSchedule schedule;
  // Optimizers on the servers only: factors of the optimizer's hyperparameters. One entry for each
  // tensor, or empty if all are 1.
  std::vector<TensorFactors> factors;
};

// Returns whether the job's learning rate factor applies to the group.
bool HasLearningRate(const GroupSpec& spec);

// Checks a learning rate factor: whether it is from 1e-6 to 1e6, and whether the learning rates of
// the group's optimizer on the servers remain in their range.
//
// Errors:
//   InvalidArgument  it is not; the message has the factor and the range
absl::Status CheckRateFactor(const GroupSpec& spec, double factor);

// Returns the optimizer of one tensor, with its factors. The group has an optimizer on the servers.
Optimizer OptimizerOf(const GroupSpec& spec, TensorId tensor);

// Returns whether an update needs norms of the whole step, so that no chunk can be updated before
// every chunk's contributions are complete. True for clipping, and for an optimizer that needs
// norms of whole tensors.
bool NeedsNorms(const GroupSpec& spec);

ChunkSizes ChunkSizesOf(const GroupSpec& spec);

// Returns the layout of the group's tensors.
//
// Errors:
//   InvalidArgument  Layout::Create refuses the tensors, the chunk sizes or the compression
absl::StatusOr<Layout> LayoutOf(const GroupSpec& spec);

// Returns whether contributions with a NaN or an infinity count like any others: with
// OnBad::kAllow, and in groups whose rule is none of average, sum and optimizer.
bool TakesNonFinite(const GroupSpec& spec);

// Checks that the servers can serve the group.
//
// Errors (the message names the field and its value):
//   InvalidArgument  the group's name is empty, longer than kMaxNameBytes or not printable;
//                    Layout::Create refuses the tensors, the chunk sizes or the compression;
//                    an average of integers;
//                    an optimizer with a dtype other than f32 and f64, or with hyperparameters
//                    out of range;
//                    compression of a dtype other than f32, with a rule other than average, sum
//                    or an optimizer, with the policy First, or of an optimizer's results;
//                    a policy out of range, First without a sum, Staleness without an optimizer,
//                    or Quorum or Staleness with one_epoch;
//                    a schedule or factors without an optimizer, or out of range;
//                    clip_norm negative, not finite, or without an optimizer;
//                    norms of the whole step (see NeedsNorms) with Staleness or one_epoch
absl::Status Validate(const GroupSpec& spec);

// Checks that two descriptions are of the same group. `theirs_owner` is the name of the worker that
// registered `theirs`.
//
// Errors:
//   InvalidArgument  they differ; the message names the first difference and both values
absl::Status CheckAgreement(const GroupSpec& ours, const GroupSpec& theirs,
                            const std::string& theirs_owner);

// Returns the first round that members push: round 0, which sets the parameters, if an optimizer
// runs on the servers; otherwise round 1.
Round FirstRound(const UpdateRule& rule);

// A registered group: its description, its layout, and the server of each chunk. Immutable once
// created, so it is safe to share between threads.
struct GroupPlan {
  GroupId id;
  GroupSpec spec;
  Layout layout;
  // servers[c] reduces chunk c.
  std::vector<ServerIndex> servers;
};

// Assigns each chunk to the server with the fewest bytes so far; among equals, to the first.
// `bytes` has the number of bytes already on each server, must not be empty, and is increased by
// the chunks that are placed.
std::vector<ServerIndex> PlaceChunks(const Layout& layout, std::vector<uint64_t>& bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_GROUP_GROUP_H_
