// The state of an optimizer on the servers, in snapshots.

#ifndef SYNCGRADS_WORKER_TRAINER_SERVER_OPTIMIZER_H_
#define SYNCGRADS_WORKER_TRAINER_SERVER_OPTIMIZER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_group.h"

namespace syncgrads {

// The name of the tensor with the counters: the number of steps, then each parameter's number of
// updates.
inline constexpr absl::string_view kCountersName = "trainer/counters";

// Returns a function that reads the state that the servers hold, and adds it to a snapshot. It owns
// what it uses: the CheckpointWriter calls it on its thread, perhaps after the trainer has been
// destroyed.
std::function<absl::Status(Snapshot&)> AddServerOptimizer(const Replica& replica,
                                                          TrainingGroup& group,
                                                          std::shared_ptr<OptimizerSnapshot> held);

// Returns the state in a snapshot, as Group::Restore takes it. `updates` are the numbers of updates
// by parameter. Errors: those of Snapshot::Find.
absl::StatusOr<OptimizerState> ServerOptimizerOf(const Snapshot& snapshot, const Replica& replica,
                                                 TrainingGroup& group,
                                                 absl::Span<const int64_t> updates);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_SERVER_OPTIMIZER_H_
