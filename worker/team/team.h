// The workers of a job, as the trainer uses them.

#ifndef SYNCGRADS_WORKER_TEAM_TEAM_H_
#define SYNCGRADS_WORKER_TEAM_TEAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "common/group/group.h"
#include "common/signals/figures.h"
#include "common/update_rule.h"

namespace syncgrads {

// The trainer's interface to the service. It separates the trainer from the Client, so
// that a single worker needs no server, and tests can replace it.
//
// All workers call a collective with the same name; different collectives may be called
// in any order. Errors are those of the Client.
class Team {
 public:
  virtual ~Team() = default;

  // Unique among the workers. A restarted worker may have the same name again.
  virtual std::string name() const = 0;
  virtual uint32_t rank() const = 0;
  virtual uint32_t world_size() const = 0;
  // Whether this worker joined while the others were training.
  virtual bool is_newcomer() const { return false; }
  bool is_master() const { return rank() == 0; }

  // Sets all workers' `values` to the reduction over the workers that `contribute`, and
  // returns their number. If it is 0, `values` are unchanged.
  virtual absl::StatusOr<uint32_t> AllReduce(absl::string_view name, absl::Span<double> values,
                                             Reduction reduction, bool contribute = true) = 0;

  // Waits for a collective that has been started, and returns the number of workers that
  // contributed. It is called once.
  using WaitForAll = absl::AnyInvocable<absl::StatusOr<uint32_t>()>;
  // Starts an AllReduce to which this worker contributes. `values` belong to the team until the
  // returned function succeeds, or Leave has returned.
  virtual absl::StatusOr<WaitForAll> StartAllReduce(absl::string_view name,
                                                    absl::Span<double> values,
                                                    Reduction reduction) {
    const absl::StatusOr<uint32_t> count = AllReduce(name, values, reduction);
    if (!count.ok()) return count.status();
    return WaitForAll([count] { return count; });
  }

  // Returns all workers' `bytes` (of any length) in rank order. Workers that have gone
  // are missing: an index is a rank only if the size is world_size(). ResourceExhausted if together
  // they would take more than 1 GiB, the longest one counted for each worker.
  virtual absl::StatusOr<std::vector<std::string>> Gather(absl::string_view name,
                                                          absl::string_view bytes) = 0;

  // Sets all workers' tensors to those of rank `root`.
  virtual absl::Status BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                                    uint32_t root) = 0;

  // Returns when all workers have called it with this name. It has no deadline: it ends with an
  // error if this worker or, in a job that is not elastic, another one is lost.
  virtual absl::Status Barrier(absl::string_view name) = 0;

  // Registers the training group. See Client::Register.
  virtual absl::StatusOr<Group*> Register(const GroupSpec& spec) = 0;

  // Allocates zeroed memory that is shared with servers on this host: gradients in it are
  // pushed without a copy. It lives as long as the team.
  //
  // Errors:
  //   ResourceExhausted  there is not enough memory that can be shared
  virtual absl::StatusOr<void*> AllocateGradients(size_t bytes) = 0;
  // Lets AllocateGradients reuse the memory.
  virtual void ReleaseGradients(void* /*memory*/) {}

  // Leaves the job: gracefully if nothing is in flight, otherwise by abandoning it. Afterwards the
  // library uses no buffer that was pushed or was to receive a result.
  virtual void Leave() {}

  // Sets the job's learning rate factor. See Client::SetLearningRateFactor.
  virtual absl::Status SetLearningRateFactor(double factor) = 0;

  // Whether a checkpoint has been requested since the last call.
  virtual bool TakeCheckpointRequest() { return false; }
  // Reports to the servers the path of a checkpoint, or why it was not written.
  virtual void ReportCheckpoint(uint64_t /*step*/, const absl::StatusOr<std::string>& /*path*/) {}
  // Reports this worker's training to the servers. `figures` pass CheckFigures.
  virtual void ReportFigures(const TrainingFigures& /*figures*/) {}
};

// A single worker without a server. It can evaluate, but not register a group.
class SoleWorker : public Team {
 public:
  std::string name() const override { return "the only one"; }
  uint32_t rank() const override { return 0; }
  uint32_t world_size() const override { return 1; }
  absl::StatusOr<uint32_t> AllReduce(absl::string_view, absl::Span<double>, Reduction,
                                     bool contribute) override {
    return contribute ? 1 : 0;
  }
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view,
                                                  absl::string_view bytes) override {
    return std::vector<std::string>{std::string(bytes)};
  }
  absl::Status BroadcastAll(absl::string_view, absl::Span<const NamedTensor>, uint32_t) override {
    return absl::OkStatus();
  }
  absl::Status Barrier(absl::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<Group*> Register(const GroupSpec&) override { return NeedsServer(); }
  absl::StatusOr<void*> AllocateGradients(size_t) override { return NeedsServer(); }
  absl::Status SetLearningRateFactor(double) override { return NeedsServer(); }

 private:
  static absl::Status NeedsServer() {
    return absl::FailedPreconditionError("training needs a server: set its address");
  }
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TEAM_TEAM_H_
