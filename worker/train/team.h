// The workers of a job, as the trainer sees them.

#ifndef SYNCGRADS_WORKER_TRAIN_TEAM_H_
#define SYNCGRADS_WORKER_TRAIN_TEAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "common/group.h"
#include "common/update_rule.h"

namespace syncgrads {

// What the trainer needs of the service. It stands between the trainer and the
// Client so that one worker alone needs no server, and tests none at all.
//
// Collectives are called by all workers with the same names, in any order. Their
// errors are those of the Client.
class Team {
 public:
  virtual ~Team() = default;

  // Unique among the workers; one that is started again has the same.
  virtual std::string name() const = 0;
  virtual uint32_t rank() const = 0;
  virtual uint32_t world_size() const = 0;
  // It joined while the others were training.
  virtual bool is_newcomer() const { return false; }
  bool is_master() const { return rank() == 0; }

  // Everybody's `values` become the reduction of those of the workers that
  // `contribute`; returns how many these are. With 0 they are as they were.
  virtual absl::StatusOr<uint32_t> AllReduce(absl::string_view name, absl::Span<double> values,
                                             Reduction reduction, bool contribute = true) = 0;

  // Everybody's `bytes` (of any length), in rank order, without those who are
  // gone.
  virtual absl::StatusOr<std::vector<std::string>> Gather(absl::string_view name,
                                                          absl::string_view bytes) = 0;

  // Everybody's tensors become those of rank `root`.
  virtual absl::Status BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                                    uint32_t root) = 0;

  virtual absl::StatusOr<Group*> Register(const GroupSpec& spec) = 0;

  // Memory of zeros, from which gradients are pushed to servers on this worker's host
  // without a copy; lives as long as the team.
  //
  // Errors:
  //   ResourceExhausted  there is not so much memory
  virtual absl::StatusOr<void*> AllocateGradients(size_t bytes) = 0;
  // It may be given to the next who asks.
  virtual void ReleaseGradients(void* /*memory*/) {}

  // Leaves the job, in order if nothing is under way, and else at once. Afterwards no
  // memory that was pushed, or was to take a result, is in use.
  virtual void LetGo() {}

  // Whether a checkpoint has been asked for since the last call.
  virtual bool TakeCheckpointRequest() { return false; }
  // Tells the servers what became of one.
  virtual void ReportCheckpoint(uint64_t /*step*/, const absl::StatusOr<std::string>& /*path*/) {}
};

// One worker without a server. It can evaluate, but not register a group.
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
  absl::StatusOr<Group*> Register(const GroupSpec&) override { return NeedsServer(); }
  absl::StatusOr<void*> AllocateGradients(size_t) override { return NeedsServer(); }

 private:
  static absl::Status NeedsServer() {
    return absl::FailedPreconditionError("training needs a server: give its address");
  }
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_TEAM_H_
