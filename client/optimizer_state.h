// What an optimizer on the servers keeps, on its way from and to them.

#ifndef SYNCGRADS_CLIENT_OPTIMIZER_STATE_H_
#define SYNCGRADS_CLIENT_OPTIMIZER_STATE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/transport.h"
#include "common/group.h"

namespace syncgrads::client {

// Waits until the servers behind all `readers` hold the round, and then is what they
// hold. Errors: as the first of them that fails.
absl::StatusOr<std::unique_ptr<HeldOptimizer>> Hold(
    std::shared_ptr<const GroupPlan> plan, std::vector<std::unique_ptr<OptimizerReader>> readers);

// InvalidArgument unless `state` has for each tensor of the group as many slots as its
// optimizer has, each as long as the tensor; names the tensor and both numbers.
absl::Status CheckState(const GroupPlan& plan, const OptimizerState& state);

// What follows a chunk's parameters in the payload that restores them: its part of each
// slot, and `updates`, which is filled. All of it stays where it is.
std::vector<absl::Span<const std::byte>> RestoredSpans(const Chunk& chunk,
                                                       const OptimizerState& state,
                                                       std::vector<uint64_t>& updates);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_OPTIMIZER_STATE_H_
