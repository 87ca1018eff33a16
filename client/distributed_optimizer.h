// An optimizer whose update begins with the reduction of the gradients over all
// workers: any optimizer, unchanged, trains data-parallel.
//
//   LocalOptimizer adam = *LocalOptimizer::Create(Adam{}, group->layout().tensors());
//   DistributedOptimizer optimizer(group, parameters, std::bind_front(
//       &LocalOptimizer::Apply, &adam));
//   for each step: optimizer.Update(gradients, timeout);
//   optimizer.Finish(timeout);

#ifndef SYNCGRADS_CLIENT_DISTRIBUTED_OPTIMIZER_H_
#define SYNCGRADS_CLIENT_DISTRIBUTED_OPTIMIZER_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "common/ids.h"

namespace syncgrads {

// Applies one reduced gradient to one tensor's parameters; both have the
// tensor's size and dtype. It may keep state for each tensor; given the same
// gradients it must do the same on every worker.
using ApplyGradient = std::function<absl::Status(
    TensorId tensor, absl::Span<const std::byte> gradient, absl::Span<std::byte> parameters)>;

// Not thread-safe.
class DistributedOptimizer {
 public:
  // `group` reduces (the usual rule is the average); it and `parameters`, one for
  // each tensor in the order of registration, must outlive this. All workers
  // begin with the same parameters: see Client::BroadcastAll.
  DistributedOptimizer(Group* group, std::vector<void*> parameters, ApplyGradient apply);

  // One step. `gradients` are in the order of registration; null: this worker
  // has none for that tensor in this step, and it is a skip. They are overwritten
  // with the reduced ones. Parameters of a tensor that nobody has a gradient for
  // stay as they are. Returns who contributed to each tensor.
  //
  // Errors: InvalidArgument if there is not one gradient for each tensor; others
  // as Group::Push, Group::WaitStep, and `apply`. Parameters have changed only
  // if it was `apply` that failed.
  absl::StatusOr<std::vector<Contributors>> Update(absl::Span<void* const> gradients,
                                                   absl::Duration timeout);
  // The same, and this worker's gradients count by `weight` in averages.
  absl::StatusOr<std::vector<Contributors>> Update(absl::Span<void* const> gradients, double weight,
                                                   absl::Duration timeout);

  // This worker has no more data: follows the others' updates until all have
  // ended, so that every worker ends with the same parameters. Returns how many
  // updates there were. `timeout` is for each of them.
  absl::StatusOr<uint64_t> Finish(absl::Duration timeout);

 private:
  // Memory for the reduced gradient of a tensor that this worker has none for.
  void* Scratch(TensorId tensor);
  absl::StatusOr<std::vector<Contributors>> Complete(absl::Span<void* const> gradients,
                                                     absl::Duration timeout);

  Group* const group_;
  const std::vector<void*> parameters_;
  const ApplyGradient apply_;
  std::vector<std::vector<std::byte>> scratch_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_DISTRIBUTED_OPTIMIZER_H_
