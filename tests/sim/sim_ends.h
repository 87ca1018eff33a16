// The servers' ends of simulated streams. They do what server/service does between gRPC and the
// core, without gRPC.

#ifndef SYNCGRADS_TESTS_SIM_SIM_ENDS_H_
#define SYNCGRADS_TESTS_SIM_SIM_ENDS_H_

#include <memory>
#include <optional>

#include "proto/control.pb.h"
#include "server/core/coordinator/coordinator.h"
#include "server/core/jobs/job.h"
#include "server/core/jobs/jobs.h"
#include "server/core/plan_log/plan_log.h"
#include "server/core/rounds/round_result.h"
#include "tests/sim/checker.h"
#include "tests/sim/freight.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

class SimServer;

// The server's end of one member's Exchange stream.
class ExchangeEnd : public ServerEnd,
                    public server::AnswerSink,
                    public std::enable_shared_from_this<ExchangeEnd> {
 public:
  ExchangeEnd(std::shared_ptr<Stream> stream, const server::Jobs& jobs, World& world,
              Checker& checker, SimServer& server)
      : stream_(std::move(stream)),
        jobs_(jobs),
        world_(world),
        checker_(checker),
        server_(server) {}

  void OnMessage(Freight& message) override;
  void OnOver() override { job_ = nullptr; }
  void OnDied() override { job_ = nullptr; }
  void Send(std::shared_ptr<const server::RoundResult> result, bool with_payload) override;

 private:
  void OnHello(const DataHello& hello);

  const std::shared_ptr<Stream> stream_;
  const server::Jobs& jobs_;
  World& world_;
  Checker& checker_;
  SimServer& server_;
  DataHello hello_;
  std::shared_ptr<server::Job> job_;
};

// The coordinator's end of one worker's Join stream.
class JoinEnd : public ServerEnd,
                public server::MemberLink,
                public std::enable_shared_from_this<JoinEnd> {
 public:
  JoinEnd(std::shared_ptr<Stream> stream, server::Coordinator* coordinator, SimServer& server)
      : stream_(std::move(stream)), coordinator_(*coordinator), server_(server) {}

  void OnMessage(Freight& message) override;
  void OnOver() override;
  void Send(Generation generation, const JobSignal::Kind& signal) override;

 private:
  void OnHello(const v1::Hello& hello);

  const std::shared_ptr<Stream> stream_;
  server::Coordinator& coordinator_;
  SimServer& server_;
  std::optional<server::Coordinator::MemberKey> member_;
};

// The coordinator's end of one server's Follow stream.
class FollowEnd : public ServerEnd,
                  public server::ServerLink,
                  public std::enable_shared_from_this<FollowEnd> {
 public:
  FollowEnd(std::shared_ptr<Stream> stream, server::Coordinator* coordinator, Checker& checker,
            SimServer& server)
      : stream_(std::move(stream)),
        coordinator_(*coordinator),
        checker_(checker),
        server_(server) {}

  void OnMessage(Freight& message) override;
  void OnOver() override;
  void Send(const server::PlanChange& change) override;
  void Prepare(const server::GroupPreparation& preparation) override;

 private:
  void OnHello(const v1::ServerHello& hello);

  const std::shared_ptr<Stream> stream_;
  server::Coordinator& coordinator_;
  Checker& checker_;
  SimServer& server_;
  std::optional<ServerIndex> server_index_;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_SIM_ENDS_H_
