// A worker in the simulation: a small trainer that uses the real client library. It joins, pushes
// gradients, waits for results, checks them, ends its data, and leaves. Its gradients are a
// function of worker, step and tensor. If it dies or is dropped, it may be started again.

#ifndef SYNCGRADS_TESTS_SIM_SIM_WORKER_H_
#define SYNCGRADS_TESTS_SIM_SIM_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/session/session.h"
#include "common/group/group.h"
#include "tests/sim/checker.h"
#include "tests/sim/fibers.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

// The settings that all workers of a job share.
struct JobShape {
  GroupSpec group;
  bool elastic = false;
  uint32_t world_size = 1;
  uint32_t max_workers = 0;
  uint32_t min_workers = 0;
  int connections = 1;
  // The last step for which the worker with the most data has data.
  uint64_t steps = 1;
  // The longest time between two pushes, and the longest time for the computation of a step.
  absl::Duration most_between_pushes;
  absl::Duration most_in_step;
  // Waits for a step are made in slices of at most this, as callers make them that do other work in
  // between. The C library makes two: one without a timeout, and one with all of it.
  absl::Duration most_wait_slice = absl::InfiniteDuration();

  bool on_servers() const { return std::holds_alternative<Optimizer>(group.rule); }
  // Quorum: steps may close without a worker, which is then late.
  bool leaves_behind() const { return std::holds_alternative<Quorum>(group.policy); }
  // Staleness: each worker counts its own steps.
  bool own_steps() const { return std::holds_alternative<Staleness>(group.policy); }
};

struct WorkerShape {
  std::string name;
  std::optional<uint32_t> rank;
  // The worker belongs to those that the job starts with; otherwise it joins later.
  bool first = true;
  absl::Duration starts_after;
  uint64_t data_steps = 1;
  // After the end of its data, the worker follows the others.
  bool follows = true;
  // The worker reports the end of its data right after its last push, and does not wait for the
  // answer to that push. The end may then arrive before the push.
  bool ends_at_once = false;
  double skips = 0;
  bool weighted = false;
};

class SimWorker : public Process {
 public:
  SimWorker(WorkerShape shape, const JobShape& job, World& world, Network& network, Fibers& fibers,
            Checker& checker);
  ~SimWorker() override;

  void Start();

  // Kills the worker's process. It starts again after `down`; nullopt: never.
  void Kill(std::optional<absl::Duration> down);
  bool alive() const { return fiber_ != nullptr; }
  // Another process has been started under the same name, so this worker is not started again.
  void Supersede() { superseded_ = true; }
  // Marks the worker as one that is, or may be, killed, cut off or stopped.
  void Disturb() { disturbed_ = true; }
  // Allows the worker to give up a server: the server pauses for longer than a lease while it is
  // unreachable.
  void AllowToGiveUp() { may_give_up_ = true; }

  const WorkerShape& shape() const { return shape_; }
  bool disturbed() const { return disturbed_; }
  // Returns true if the worker has ended and will not be started again.
  bool done() const { return done_; }
  // Returns true if the worker is done and its last session ended without an error.
  bool finished() const { return finished_; }
  // For people to read: what the worker does, or how it ended.
  const std::string& doing() const { return doing_; }

 private:
  // Runs one session, from Join to Leave.
  absl::Status Live();
  absl::Status Train(client::Session& session);
  absl::Status TrainSteps(client::Session& session, Group& group);
  // Calls `wait` with timeouts of at most JobShape::most_wait_slice until it has another error than
  // DeadlineExceeded, or none.
  absl::Status InSlices(absl::FunctionRef<absl::Status(absl::Duration)> wait);
  // Pushes the current step, or skips it.
  absl::Status PushStep(Group& group, bool ended);
  absl::Status SkipStep(Group& group);
  absl::Status Contribute(Group& group, uint64_t epoch);
  // `step` is the step that was pushed. A late worker may have ended a later step instead.
  void EndStep(Group& group, uint64_t step, const std::vector<Contributors>& counts);
  // Checks that the worker's value of a tensor is the one that was sent to it.
  void CheckResult(uint64_t step, uint32_t tensor, const Contributors& counts);
  void CheckVersion(uint64_t step, uint32_t tensor);
  // Checks the learning rate factor that the worker has in a step.
  void CheckRate(uint64_t step, double factor);
  // With the optimizer on the workers: its learning rate is `rate`.
  void Apply(uint32_t tensor, bool anybody, float rate);
  absl::Status Broadcast(Group& group);

  void OnLifeOver();
  void StartAgainAfter(absl::Duration delay);
  void Finish(bool well);
  // Returns true if `status` is an acceptable end of this session, because of faults or of a
  // decision of the coordinator.
  bool IsExcused(const absl::Status& status) const;
  void Doing(std::string what);
  std::vector<float> GradientOf(uint64_t step, uint32_t tensor, uint64_t epoch) const;
  std::string State() const;

  const WorkerShape shape_;
  const JobShape& job_;
  World& world_;
  Network& network_;
  Fibers& fibers_;
  Checker& checker_;

  Fibers::Fiber* fiber_ = nullptr;
  Incarnation incarnation_{};
  absl::Status ended_with_;
  bool joined_ = false, ending_ = false, was_killed_ = false;
  std::optional<absl::Duration> down_;
  bool superseded_ = false, disturbed_ = false, may_give_up_ = false, done_ = false,
       finished_ = false;
  int lives_ = 0;
  std::string doing_ = "waits to be started";

  // The following fields belong to one session.
  std::vector<std::vector<float>> parameters_, gradients_, results_;
  // For each tensor: whether the result is written to the memory of the gradient.
  std::vector<bool> in_gradients_;
  int64_t steps_done_ = 0;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_SIM_WORKER_H_
