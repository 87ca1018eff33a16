// A server in the simulation: the real core on a real state directory, connected by simulated
// streams. It can die before or after any single store or send. Everything that it has not stored
// is then lost.

#ifndef SYNCGRADS_TESTS_SIM_SIM_SERVER_H_
#define SYNCGRADS_TESTS_SIM_SIM_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/core/coordinator/coordinator.h"
#include "server/core/jobs/jobs.h"
#include "server/core/plan/journal.h"
#include "server/core/plan/store.h"
#include "server/core/rounds/round_result.h"
#include "server/service/control/plan_store.h"
#include "server/state/state_directory.h"
#include "tests/sim/checker.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_transport.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

class SimServer : public Process, public Service, public server::Journal {
 public:
  struct Options {
    uint32_t index = 0;
    uint32_t servers = 1;
    std::string state;  // the path of a directory
    server::CoordinatorOptions coordinator;
  };

  SimServer(Options options, World& world, Network& network, Checker& checker);
  ~SimServer() override;

  static std::string AddressOf(uint32_t index);

  // Starts the server on the state that its predecessor left in the state directory.
  void Start();
  bool running() const { return jobs_ != nullptr; }
  // Stops the server and does not restart it.
  void Stop();
  uint32_t index() const { return options_.index; }
  World& world() { return world_; }

  // Kills the server after `touches` further stores and sends, but at the latest after 1 s of
  // virtual time. It restarts after `down`.
  void DieAfter(uint64_t touches, absl::Duration down);
  // At its next death, the newest round that it has sent is damaged in the state. The restarted
  // server must then detect this and begin without state.
  void DamageAtDeath() { damage_at_death_ = true; }
  uint64_t deaths() const { return deaths_; }

  // Called before and after each store and each send. If the server has to die there, throws
  // ProcessDied.
  void Touch();
  void OnSent(const server::RoundResult& result) {
    if (!result.payload.empty()) newest_sent_ = result.slot;
  }

  // Server 0 only: an operator sets the learning rate factor of the job. A job that is not running
  // yet, or not any more, refuses it.
  void SetLearningRate(double factor);

  void OnDied() override;

  std::shared_ptr<ServerEnd> AcceptData(std::shared_ptr<Stream> stream) override;
  std::shared_ptr<ServerEnd> AcceptControl(std::shared_ptr<Stream> stream) override;
  std::shared_ptr<ServerEnd> AcceptFollow(std::shared_ptr<Stream> stream) override;
  std::vector<RoundWait> Explain(const std::string& job, GroupId group) override;

  void Debug(const std::string& line) override;
  void Note(const std::string& line) override;
  void Warn(const std::string& line) override;

 private:
  class Following;
  class WatchedStore;

  void OpenState();
  // Compares what was damaged with what has been found.
  void CheckDamage();
  server::PlanStoreOptions StoreOptions();
  server::Store* StoreOfJobs() const;
  void RunLater(std::function<void()> closure);
  void Restart();
  void Tick();
  void DamageState();
  Incarnation DrawIncarnation();

  const Options options_;
  World& world_;
  Network& network_;
  Checker& checker_;

  // These objects are destroyed when the server dies.
  std::unique_ptr<server::StateDirectory> directory_;
  std::unique_ptr<server::PlanStore> plan_store_;
  std::unique_ptr<WatchedStore> store_;
  server::StoredPlan plan_;
  std::vector<server::HeldRounds> held_;
  std::unique_ptr<server::Jobs> jobs_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<Following> following_;
  // The time at which the last closure passed to RunLater() runs.
  absl::Time run_at_ = absl::InfinitePast();

  bool mortal_ = false;
  uint64_t touches_left_ = 0;
  absl::Duration down_;
  bool damage_at_death_ = false;
  bool damaged_ = false;  // the state is damaged, and the server has not been restarted since
  bool lost_ = false;     // at the last start, a job's state was damaged
  std::weak_ptr<const server::Slot> newest_sent_;
  uint64_t deaths_ = 0;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_SIM_SERVER_H_
