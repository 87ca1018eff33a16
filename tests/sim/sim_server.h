// A server in the simulation: the real core on a real state directory, between
// simulated streams. It can die at any moment, and in the middle of anything in
// which it stores or says something; what it had not stored is lost then.

#ifndef SYNCGRADS_TESTS_SIM_SIM_SERVER_H_
#define SYNCGRADS_TESTS_SIM_SIM_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/core/coordinator.h"
#include "server/core/jobs.h"
#include "server/core/journal.h"
#include "server/core/round_result.h"
#include "server/core/store.h"
#include "server/service/plan_store.h"
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
    std::string state;  // a directory
    server::CoordinatorOptions coordinator;
  };

  SimServer(Options options, World& world, Network& network, Checker& checker);
  ~SimServer() override;

  static std::string AddressOf(uint32_t index);

  // Begins, on what its predecessor left in the state directory.
  void Start();
  bool running() const { return jobs_ != nullptr; }
  // For good.
  void Stop();
  uint32_t index() const { return options_.index; }
  World& world() { return world_; }

  // Dies when it has stored or said so many more things, 0 or more, and starts
  // again after `down`.
  void DieAfter(uint64_t touches, absl::Duration down);
  // When it dies next, a round that it has sent is damaged. It has to begin with
  // nothing then.
  void DamageAtDeath() { damage_at_death_ = true; }
  uint64_t deaths() const { return deaths_; }

  // What is between this server and the world calls this whenever something is
  // about to leave it, or has: it may die there.
  void Touch();
  void OnSent(const server::RoundResult& result) {
    if (!result.payload.empty()) newest_sent_ = result.slot;
  }

  void OnDied() override;

  std::shared_ptr<ServerEnd> AcceptData(std::shared_ptr<Stream> stream) override;
  std::shared_ptr<ServerEnd> AcceptControl(std::shared_ptr<Stream> stream) override;
  std::shared_ptr<ServerEnd> AcceptFollow(std::shared_ptr<Stream> stream) override;
  std::vector<client::RoundWait> Explain(const std::string& job, GroupId group) override;

  void Note(const std::string& line) override;
  void Warn(const std::string& line) override;

 private:
  class Following;
  class WatchedStore;

  void OpenState();
  void Restart();
  void Tick();
  void DamageState();
  Incarnation DrawIncarnation();

  const Options options_;
  World& world_;
  Network& network_;
  Checker& checker_;

  // What dies with it.
  std::unique_ptr<server::StateDirectory> directory_;
  std::unique_ptr<server::PlanStore> plan_store_;
  std::unique_ptr<WatchedStore> store_;
  server::StoredPlan plan_;
  std::vector<server::HeldRounds> held_;
  std::unique_ptr<server::Jobs> jobs_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<Following> following_;

  bool mortal_ = false;
  uint64_t touches_left_ = 0;
  absl::Duration down_;
  bool damage_at_death_ = false;
  bool damaged_ = false;  // and it has not started since
  std::weak_ptr<const server::Slot> newest_sent_;
  uint64_t deaths_ = 0;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_SIM_SERVER_H_
