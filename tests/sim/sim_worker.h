// A worker in the simulation: a small trainer on the real client library. It joins,
// pushes gradients that are a function of who, which step and which tensor, waits,
// checks what it gets, ends and leaves; when it dies or is dropped, it comes again.

#ifndef SYNCGRADS_TESTS_SIM_SIM_WORKER_H_
#define SYNCGRADS_TESTS_SIM_SIM_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/session.h"
#include "common/group.h"
#include "tests/sim/checker.h"
#include "tests/sim/fibers.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

// What all workers of a job share.
struct JobShape {
  GroupSpec group;
  bool elastic = false;
  uint32_t world_size = 1;
  uint32_t max_workers = 0;
  uint32_t min_workers = 0;
  int connections = 1;
  // The step that the furthest worker's data ends with.
  uint64_t steps = 1;
  // Of the time between two pushes, and of that of a step.
  absl::Duration most_between_pushes;
  absl::Duration most_in_step;

  bool on_servers() const { return std::holds_alternative<Optimizer>(group.rule); }
  // Steps may be made without a worker, which is then late.
  bool leaves_behind() const { return std::holds_alternative<Quorum>(group.policy); }
  // Each worker counts steps of its own.
  bool own_steps() const { return std::holds_alternative<Staleness>(group.policy); }
};

struct WorkerShape {
  std::string name;
  std::optional<uint32_t> rank;
  // It is there from the start, and not a later one.
  bool first = true;
  absl::Duration starts_after;
  uint64_t data_steps = 1;
  // Goes on with the others when its data has ended.
  bool follows = true;
  // Says that its data has ended right after its last push, not when that has been
  // answered: the one may overtake the other.
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

  // Kills what runs; it starts again `down` later, or never.
  void Kill(std::optional<absl::Duration> down);
  bool alive() const { return fiber_ != nullptr; }
  // Another process has been started under its name: it is not started again.
  void Supersede() { superseded_ = true; }
  // It was, or may have been, killed, cut off, or stopped.
  void Disturb() { disturbed_ = true; }

  const WorkerShape& shape() const { return shape_; }
  bool disturbed() const { return disturbed_; }
  // Nothing more will come of it.
  bool done() const { return done_; }
  // It is done, and its last life ended well.
  bool finished() const { return finished_; }
  // What it does, or how it ended, in words.
  const std::string& doing() const { return doing_; }

 private:
  // One life: a session, from Join to Leave.
  absl::Status Live();
  absl::Status Train(client::Session& session);
  absl::Status TrainSteps(client::Session& session, Group& group);
  // Pushes the step that is under way, or skips it.
  absl::Status PushStep(Group& group, bool ended);
  absl::Status SkipStep(Group& group);
  absl::Status Contribute(Group& group, uint64_t epoch);
  // `step` is the one that was pushed; the one that has ended may be a later one.
  void EndStep(Group& group, uint64_t step, const std::vector<Contributors>& counts);
  // What it has of a tensor is what it was sent.
  void CheckResult(uint64_t step, uint32_t tensor, const Contributors& counts);
  void CheckVersion(uint64_t step, uint32_t tensor);
  void Apply(uint32_t tensor, bool anybody);
  absl::Status Broadcast(Group& group);

  void OnLifeOver();
  void StartAgainAfter(absl::Duration delay);
  void Finish(bool well);
  // Whether the others, or the plan, have given this life a reason to fail so.
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
  bool superseded_ = false, disturbed_ = false, done_ = false, finished_ = false;
  int lives_ = 0;
  std::string doing_ = "waits to be started";

  // Of one life.
  std::vector<std::vector<float>> parameters_, gradients_, results_;
  // Of each tensor, whether its result goes where its gradient was.
  std::vector<bool> in_gradients_;
  int64_t steps_done_ = 0;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_SIM_WORKER_H_
