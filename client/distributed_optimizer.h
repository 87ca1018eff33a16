// An optimizer that first reduces the gradients over all workers. It makes any optimizer,
// unchanged, train data-parallel.
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
#include "client/api/group.h"
#include "common/ids.h"

namespace syncgrads {

// Applies one reduced gradient to one tensor's parameters. Both have the tensor's size and dtype.
// It may keep state for each tensor. Given the same gradients, it must do the same on every worker.
// If the group has members_scale_rate, it multiplies its learning rate by
// Group::learning_rate_factor(), which is that of the step.
using ApplyGradient = std::function<absl::Status(
    TensorId tensor, absl::Span<const std::byte> gradient, absl::Span<std::byte> parameters)>;

// Not thread-safe.
class DistributedOptimizer {
 public:
  // `group` reduces the gradients, usually by averaging. `parameters` has one pointer for each
  // tensor, in the order of registration. The group and the parameters' memory must outlive this
  // object. All workers start with the same parameters: see Client::BroadcastAll.
  DistributedOptimizer(Group* group, std::vector<void*> parameters, ApplyGradient apply);

  // Makes one step. `gradients` has one pointer for each tensor, in the order of registration. A
  // null pointer skips the tensor: this worker has no gradient for it in this step. The reduced
  // gradients overwrite the others. If nobody has a gradient for a tensor, its parameters do not
  // change. Returns the contributors of each tensor.
  //
  // Errors:
  //   InvalidArgument  the number of gradients or parameters is not that of the tensors, or the
  //                    group has its optimizer on the servers
  //   others           those of Group::Push, Group::WaitStep, and `apply`; parameters have changed
  //                    only if `apply` failed
  absl::StatusOr<std::vector<Contributors>> Update(absl::Span<void* const> gradients,
                                                   absl::Duration timeout);
  // Makes one step in which this worker's gradients have weight `weight` in averages.
  absl::StatusOr<std::vector<Contributors>> Update(absl::Span<void* const> gradients, double weight,
                                                   absl::Duration timeout);

  // Declares that this worker has no more data, and follows the others' updates until all workers
  // have ended, so that all end with the same parameters. Returns the number of steps that it
  // followed. `timeout` applies to each of them.
  absl::StatusOr<uint64_t> Finish(absl::Duration timeout);

 private:
  // Returns memory for the reduced gradient of a tensor for which this worker has no gradient.
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
