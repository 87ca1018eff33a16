#include "tests/sim/schedule.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "tests/sim/checker.h"
#include "tests/sim/fibers.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {
namespace {

// No fault begins later than kFaults. Every schedule ends within kEnd.
constexpr absl::Duration kFaults = absl::Seconds(6);
constexpr absl::Duration kEnd = absl::Seconds(150);

constexpr absl::Duration kLease = absl::Seconds(6);
constexpr absl::Duration kGrace = absl::Milliseconds(1500);
// A connection survives this time without an answer.
constexpr absl::Duration kLongestPause = absl::Seconds(18);
// The longest time from a break, or from a server's death, to the new stream.
constexpr absl::Duration kMostToReconnect = absl::Seconds(4);

class Schedule {
 public:
  explicit Schedule(const ScheduleOptions& options)
      : options_(options),
        world_(options.seed, options.trace),
        network_(world_, DrawNetwork()),
        checker_(world_),
        fibers_(world_) {}

  ScheduleOutcome Run() {
    DrawJob();
    DrawServers();
    DrawWorkers();
    DrawFaults();
    DrawLearningRates();
    if (options_.pauses) DrawPauses();
    world_.Trace(Describe());
    const bool ended = world_.Run(kEnd, [this] {
      return std::all_of(workers_.begin(), workers_.end(),
                         [](const auto& worker) { return worker->done(); });
    });
    if (!ended) {
      world_.Fail(absl::StrCat("it does not end: ", WhatWorkersDo()));
    } else if (world_.failure().empty()) {
      CheckEnds();
    }
    ScheduleOutcome outcome;
    outcome.failure = world_.failure();
    outcome.description = Describe();
    outcome.events = world_.events();
    outcome.results = checker_.results();
    outcome.dropped = checker_.dropped().size();
    outcome.epochs = checker_.epochs();
    outcome.left_behind = checker_.left_behind();
    for (const auto& server : servers_) outcome.server_deaths += server->deaths();
    TearDown();
    return outcome;
  }

 private:
  Random& random() { return world_.random(); }

  NetworkOptions DrawNetwork() {
    NetworkOptions options;
    // The network is anything from fast to slower than the workers.
    options.most_delay = absl::Milliseconds(uint64_t{1} << random().Below(7));
    options.repeated = random().Chance(0.5) ? 0.05 : 0;
    options.out_of_order = random().Chance(0.5) ? 0.2 : 0;
    return options;
  }

  void DrawJob() {
    job_.world_size = static_cast<uint32_t>(random().Between(1, 4));
    job_.elastic = random().Chance(0.65);
    if (job_.elastic) {
      job_.max_workers = job_.world_size + 2;
      job_.min_workers = 1;
    }
    job_.connections = static_cast<int>(random().Between(1, 2));
    job_.steps = random().Between(2, 14);
    job_.most_between_pushes = absl::Milliseconds(uint64_t{1} << random().Below(7));
    // Steps of very different lengths, so that faults occur in all phases of a run.
    job_.most_in_step = absl::Milliseconds(uint64_t{1} << random().Between(6, 11));
    if (random().Chance(0.5)) {
      job_.most_wait_slice = absl::Milliseconds(uint64_t{1} << random().Between(3, 9));
    }
    GroupSpec& group = job_.group;
    group.name = "model";
    const uint64_t tensors = random().Between(1, 5);
    for (uint64_t t = 0; t < tensors; ++t) {
      group.tensors.push_back({absl::StrCat("tensor", t),
                               DType::kF32,
                               {static_cast<int64_t>(random().Between(1, 24))}});
    }
    group.chunk_bytes = static_cast<uint32_t>(8 * random().Between(2, 12));
    group.one_epoch = job_.elastic && random().Chance(0.3);
    if (random().Chance(0.4)) group.rule = Optimizer(Momentum{0.25, 0.5, 0});
    group.members_scale_rate = !job_.on_servers();
    if (random().Chance(0.3)) {
      DrawQuorum();
    } else if (random().Chance(0.3)) {
      return DrawStaleness();
    }
    if (job_.on_servers() && !group.one_epoch && random().Chance(0.3)) group.clip_norm = 0.5;
    if (job_.on_servers() && random().Chance(0.3)) {
      group.schedule.decay = StepDecay{{1, 4}, 0.5};
      // Powers of two, so that the learning rates are exact.
      for (size_t t = 0; t < group.tensors.size(); ++t) {
        group.factors.push_back({.learning_rate = t % 3 == 2 ? 0 : t % 3 == 1 ? 0.25 : 2});
      }
    }
  }

  void DrawQuorum() {
    GroupSpec& group = job_.group;
    Quorum quorum;
    quorum.least = static_cast<uint32_t>(random().Between(1, job_.world_size));
    if (random().Chance(0.5)) quorum.grace = absl::Milliseconds(random().Below(300));
    quorum.kept = static_cast<uint32_t>(random().Between(2, 8));
    // A worker that is further behind than the kept results has to join again, which needs an
    // elastic job. In other jobs, all results are kept.
    if (!job_.on_servers() && !job_.elastic) quorum.kept = static_cast<uint32_t>(job_.steps) + 2;
    group.policy = quorum;
    group.one_epoch = false;
  }

  void DrawStaleness() {
    GroupSpec& group = job_.group;
    Staleness staleness;
    if (random().Chance(0.7)) staleness.bound = static_cast<uint32_t>(random().Below(4));
    group.policy = staleness;
    // With this optimizer the result does not depend on the order of contributions; see
    // versions_checker.h.
    group.rule = Optimizer(Sgd{0.5, 0});
    group.members_scale_rate = false;
    group.one_epoch = false;
    job_.elastic = false;
    job_.max_workers = job_.min_workers = 0;
  }

  void DrawServers() {
    const uint32_t count = static_cast<uint32_t>(random().Between(1, 3));
    for (uint32_t index = 0; index < count; ++index) {
      SimServer::Options options;
      options.index = index;
      options.servers = count;
      options.state = absl::StrCat(options_.directory, "/", index);
      options.coordinator.membership.heartbeat_interval = absl::Milliseconds(500);
      options.coordinator.membership.lease = kLease;
      options.coordinator.membership.abandoned_job_ttl = 5 * kLease;
      options.coordinator.membership.stream_grace = kGrace;
      options.coordinator.membership.join_timeout = absl::Seconds(20);
      servers_.push_back(std::make_unique<SimServer>(options, world_, network_, checker_));
      SimServer* const server = servers_.back().get();
      world_.After(*server, random().Between(absl::ZeroDuration(), absl::Milliseconds(300)),
                   [server] { server->Start(); });
    }
  }

  void DrawWorkers() {
    for (uint32_t rank = 0; rank < job_.world_size; ++rank) {
      WorkerShape shape = DrawWorker(absl::StrCat("w", rank));
      shape.rank = rank;
      shape.starts_after = random().Between(absl::ZeroDuration(), absl::Milliseconds(500));
      AddWorker(std::move(shape));
    }
    const uint64_t late = job_.elastic ? random().Below(3) : 0;
    for (uint64_t i = 0; i < late; ++i) {
      WorkerShape shape = DrawWorker(absl::StrCat("late", i));
      shape.first = false;
      shape.starts_after = random().Between(absl::Milliseconds(500), kFaults);
      AddWorker(std::move(shape));
    }
  }

  WorkerShape DrawWorker(std::string name) {
    WorkerShape shape;
    shape.name = std::move(name);
    shape.data_steps = random().Chance(0.7) ? job_.steps : random().Between(1, job_.steps);
    shape.follows = random().Chance(0.8);
    // In a group of one epoch, a worker may have to make a contribution again, so it must not have
    // ended its data before.
    shape.ends_at_once = !job_.group.one_epoch && random().Chance(0.5);
    shape.skips = random().Chance(0.3) ? 0.3 : 0;
    shape.weighted = random().Chance(0.3);
    return shape;
  }

  SimWorker& AddWorker(WorkerShape shape) {
    workers_.push_back(
        std::make_unique<SimWorker>(std::move(shape), job_, world_, network_, fibers_, checker_));
    workers_.back()->Start();
    return *workers_.back();
  }

  void At(absl::Duration when, std::string what, std::function<void()> fault) {
    faults_.push_back(absl::StrFormat("%s at %.2f s", what, absl::ToDoubleSeconds(when)));
    world_.After(when, std::move(fault));
  }

  absl::Duration DrawTime() { return random().Between(absl::Milliseconds(100), kFaults); }

  void DrawFaults() {
    for (uint64_t i = random().Below(8); i > 0; --i) {
      const absl::Duration when = DrawTime();
      breaks_.push_back(when);
      At(when, "a stream breaks", [this] { network_.BreakAny(); });
    }
    if (random().Chance(0.6)) {
      for (uint64_t i = random().Between(1, 4); i > 0; --i) DrawServerDeath();
    }
    if (random().Chance(0.6)) {
      for (uint64_t i = random().Between(1, 3); i > 0; --i) DrawWorkerFault();
    }
  }

  void DrawServerDeath() {
    SimServer* const server = servers_[random().Below(servers_.size())].get();
    // The number of stores and sends after which the server dies.
    const uint64_t touches = random().Below(30);
    const absl::Duration down = random().Between(absl::Milliseconds(10), absl::Milliseconds(900));
    const bool damage = random().Chance(0.05);
    const absl::Duration when = DrawTime();
    breaks_.push_back(when);
    At(when, absl::StrCat(server->name(), damage ? " dies and is damaged" : " dies"),
       [server, touches, down, damage] {
         if (!server->running()) return;
         if (damage) server->DamageAtDeath();
         server->DieAfter(touches, down);
       });
  }

  void DrawWorkerFault() {
    SimWorker* const worker = workers_[random().Below(workers_.size())].get();
    worker->Disturb();
    const absl::Duration when = DrawTime();
    const absl::Duration time = random().Between(absl::Milliseconds(100), absl::Seconds(10));
    switch (random().Below(4)) {
      case 0: {
        const bool again = job_.elastic && random().Chance(0.8);
        const std::optional<absl::Duration> down =
            again ? std::optional<absl::Duration>(time / 4) : std::nullopt;
        At(when, absl::StrCat(worker->name(), " is killed"),
           [worker, down] { worker->Kill(down); });
        break;
      }
      case 1:
        At(when, absl::StrCat(worker->name(), " is stopped"), [this, worker, time] {
          world_.Freeze(*worker);
          world_.After(time, [this, worker] { world_.Thaw(*worker); });
        });
        break;
      case 2:
        CutOff(*worker, when, time);
        break;
      case 3:
        CutOff(*worker, when, time);
        if (!job_.elastic) break;
        // The worker is assumed to be dead, and another process is started in its place.
        At(when + absl::Milliseconds(50), absl::StrCat(worker->name(), " gets a successor"),
           [this, worker] {
             if (!worker->alive()) return;
             worker->Supersede();
             WorkerShape shape = worker->shape();
             shape.starts_after = absl::ZeroDuration();
             AddWorker(std::move(shape)).Disturb();
           });
        break;
    }
  }

  void CutOff(SimWorker& worker, absl::Duration when, absl::Duration time) {
    At(when, absl::StrCat(worker.name(), " is cut off"), [this, &worker, time] {
      network_.CutOff(worker);
      world_.After(time, [this, &worker] { network_.Reconnect(worker); });
    });
  }

  // An operator changes the learning rate of running jobs. With the policy Staleness, the versions
  // would depend on when each server has received the change.
  void DrawLearningRates() {
    Random random(Mix(options_.seed) + 2);
    if (job_.own_steps() || random.Chance(0.5)) return;
    for (uint64_t i = random.Between(1, 4); i > 0; --i) {
      const absl::Duration when = random.Between(absl::Milliseconds(100), kFaults);
      const double factor = std::ldexp(1, static_cast<int>(random.Below(5)) - 2);
      SimServer* const coordinator = servers_[0].get();
      faults_.push_back(absl::StrFormat("the learning rate is set to %g-fold at %.2f s", factor,
                                        absl::ToDoubleSeconds(when)));
      // If server 0 pauses, it receives the request afterwards; if it is dead, never.
      world_.After(when, [this, coordinator, factor] {
        world_.After(*coordinator, absl::ZeroDuration(),
                     [coordinator, factor] { coordinator->SetLearningRate(factor); });
      });
    }
  }

  // Draws pauses. While a process pauses, its events wait and time continues for the others;
  // afterwards the waiting events run all at once. No member may be dropped because servers or all
  // processes pause, unless a stream breaks in that time.
  void DrawPauses() {
    Random random(Mix(options_.seed) + 1);
    for (uint64_t i = random.Between(1, 2); i > 0; --i) {
      const absl::Duration when = random.Between(absl::Milliseconds(100), kFaults);
      const absl::Duration time = random.Between(kLease / 2, kLongestPause);
      std::vector<Process*> servers, workers;
      std::string who;
      switch (random.Below(7)) {
        case 0:
          servers = {servers_[0].get()};
          who = servers_[0]->name();
          break;
        case 1: {
          SimServer* const server = servers_[random.Below(servers_.size())].get();
          servers = {server};
          who = server->name();
          break;
        }
        case 2:
          servers = AllOf(servers_);
          who = "all servers";
          break;
        case 3:
          servers = AllOf(servers_);
          workers = AllOf(workers_);
          who = "everything";
          break;
        case 4:
          workers = {workers_[random.Below(workers_.size())].get()};
          who = workers[0]->name();
          break;
        case 5:
          workers = AllOf(workers_);
          who = "all workers";
          break;
        case 6:
          for (const auto& worker : workers_) {
            if (random.Chance(0.5)) workers.push_back(worker.get());
          }
          who = absl::StrCat(workers.size(), " workers");
          break;
      }
      if (servers.empty()) {
        for (Process* const worker : workers) dynamic_cast<SimWorker&>(*worker).Disturb();
      }
      // If the stream of a worker has broken, the worker does not know that the server is only
      // paused.
      const bool breaks = std::any_of(breaks_.begin(), breaks_.end(), [&](absl::Duration broken) {
        return when - kMostToReconnect <= broken && broken <= when + time;
      });
      if (!servers.empty() && breaks) {
        for (const auto& worker : workers_) worker->AllowToGiveUp();
      }
      std::vector<Process*> processes = servers;
      processes.insert(processes.end(), workers.begin(), workers.end());
      Pause(std::move(who), when, time, processes);
    }
  }

  template <typename T>
  static std::vector<Process*> AllOf(const std::vector<std::unique_ptr<T>>& processes) {
    std::vector<Process*> all;
    for (const auto& process : processes) all.push_back(process.get());
    return all;
  }

  void Pause(std::string who, absl::Duration when, absl::Duration time,
             const std::vector<Process*>& processes) {
    At(when, absl::StrFormat("%s pause for %.1f s", who, absl::ToDoubleSeconds(time)),
       [this, time, processes] {
         // A dead server is frozen too, and restarts after the pause.
         for (Process* const process : processes) {
           ++pauses_[process];
           world_.Freeze(*process);
         }
         world_.After(time, [this, processes] {
           for (Process* const process : processes) {
             if (--pauses_[process] == 0) world_.Thaw(*process);
           }
         });
       });
  }

  void CheckEnds() {
    const bool disturbed = std::any_of(workers_.begin(), workers_.end(),
                                       [](const auto& worker) { return worker->disturbed(); });
    if (checker_.state_lost()) return;
    if (!disturbed && !checker_.dropped().empty()) {
      world_.Fail(absl::StrCat("nobody died, and one was dropped: ", checker_.dropped().front()));
    }
    if (checker_.lost_at_the_start()) return;
    for (const auto& worker : workers_) {
      if (worker->finished() || worker->disturbed() || !worker->shape().first) continue;
      world_.Fail(
          absl::StrCat(worker->name(), " has had no part in the end: it ", worker->doing()));
    }
  }

  std::string WhatWorkersDo() const {
    return absl::StrJoin(workers_, "; ", [](std::string* out, const auto& worker) {
      absl::StrAppend(out, worker->name(), " ", worker->doing());
    });
  }

  std::string Describe() const {
    return absl::StrCat(
        servers_.size(), " servers, ", job_.world_size, " workers",
        job_.elastic ? absl::StrCat(" (elastic, ", workers_.size() - job_.world_size, " later)")
                     : "",
        ", ", job_.steps, " steps, ", job_.on_servers() ? "optimizer on the servers" : "average",
        ", ", ToString(job_.group.policy), job_.group.one_epoch ? ", one epoch" : "",
        job_.group.clip_norm > 0 ? ", clipped" : "", faults_.empty() ? "" : "; ",
        absl::StrJoin(faults_, ", "));
  }

  void TearDown() {
    // If the schedule has failed, workers may still be running.
    for (const auto& worker : workers_) {
      worker->Supersede();
      worker->Kill(std::nullopt);
    }
    world_.Forgive();
    world_.Run(absl::Seconds(10), [this] { return fibers_.running() == 0; });
    for (const auto& server : servers_) {
      if (server->running()) server->Stop();
    }
    world_.Clear();
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(options_.directory, ignored)) {
      std::filesystem::remove_all(entry.path(), ignored);
    }
  }

  const ScheduleOptions options_;
  World world_;
  Network network_;
  Checker checker_;
  JobShape job_;
  std::vector<std::unique_ptr<SimServer>> servers_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  // Declared last, so that it is destroyed before the objects that fibers wait in.
  Fibers fibers_;
  std::vector<std::string> faults_;
  // The number of pauses that each process is in at present.
  std::map<Process*, int> pauses_;
  // The times at which streams break and servers die.
  std::vector<absl::Duration> breaks_;
};

}  // namespace

ScheduleOutcome RunSchedule(const ScheduleOptions& options) { return Schedule(options).Run(); }

}  // namespace syncgrads::sim
