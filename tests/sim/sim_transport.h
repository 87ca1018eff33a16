// The client library's transport over the simulated network.

#ifndef SYNCGRADS_TESTS_SIM_SIM_TRANSPORT_H_
#define SYNCGRADS_TESTS_SIM_SIM_TRANSPORT_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "client/link/timers.h"
#include "client/link/transport.h"
#include "common/signals/round_wait.h"
#include "tests/sim/checker.h"
#include "tests/sim/freight.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

// The network interface of a server process: it accepts streams and answers Explain.
class Service {
 public:
  virtual ~Service() = default;
  virtual std::shared_ptr<ServerEnd> AcceptData(std::shared_ptr<Stream> stream) = 0;
  virtual std::shared_ptr<ServerEnd> AcceptControl(std::shared_ptr<Stream> stream) = 0;
  virtual std::shared_ptr<ServerEnd> AcceptFollow(std::shared_ptr<Stream> stream) = 0;
  virtual std::vector<RoundWait> Explain(const std::string& job, GroupId group) = 0;
};

// The transport of one worker's process. Not thread-safe: used in events of one World.
class SimTransport : public client::Transport {
 public:
  // All arguments must outlive this object.
  SimTransport(Network& network, Process& process, Checker& checker)
      : network_(network), process_(process), checker_(checker) {}

  std::shared_ptr<client::DataStream> OpenData(
      const std::string& address, std::shared_ptr<client::DataStreamEvents> events) override;
  std::shared_ptr<client::ControlStream> OpenControl(
      const std::string& address, std::shared_ptr<client::ControlStreamEvents> events) override;
  void Explain(const std::string& address, const std::string& job, const std::string& token,
               GroupId group, absl::Duration timeout, ExplainAnswer answer) override;

 private:
  Network& network_;
  Process& process_;
  Checker& checker_;
};

// Timers in virtual time.
class SimTimers : public client::Timers {
 public:
  SimTimers(World& world, Process& process)
      : world_(world), process_(process), running_(std::make_shared<bool>(true)) {}
  absl::Time Now() const override { return world_.Now(); }
  void After(absl::Duration delay, std::function<void()> call) override;
  void Stop() override { *running_ = false; }

 private:
  World& world_;
  Process& process_;
  const std::shared_ptr<bool> running_;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_SIM_TRANSPORT_H_
