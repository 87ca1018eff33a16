// The state of an optimizer on the servers: reading a snapshot of it, and restoring it.

#ifndef SYNCGRADS_CLIENT_ROUNDS_OPTIMIZER_STATE_H_
#define SYNCGRADS_CLIENT_ROUNDS_OPTIMIZER_STATE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/api/group.h"
#include "client/link/transport.h"
#include "common/group/group.h"

namespace syncgrads::client {

// Waits until the servers of all `readers` hold the round, and returns the snapshot that they hold.
// Errors: those of the first reader that fails.
absl::StatusOr<std::unique_ptr<OptimizerSnapshot>> Hold(
    std::shared_ptr<const GroupPlan> plan, std::vector<std::unique_ptr<OptimizerReader>> readers);

// InvalidArgument unless `state` has, for each tensor of the group, the optimizer's number of
// slots, each as long as the tensor. The message has the tensor and both values.
absl::Status CheckState(const GroupPlan& plan, const OptimizerState& state);

// Returns what follows a chunk's parameters in the payload that restores them: the chunk's part of
// each slot, then `updates`, which this function fills. The result points into `state` and
// `updates`.
std::vector<absl::Span<const std::byte>> RestoredSpans(const Chunk& chunk,
                                                       const OptimizerState& state,
                                                       std::vector<uint64_t>& updates);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_ROUNDS_OPTIMIZER_STATE_H_
