// A coordinator for tests: when a call returns, its own server has applied all changes that were
// sent to it.

#ifndef SYNCGRADS_TESTS_SERVER_CORE_COORDINATOR_APPLIED_COORDINATOR_H_
#define SYNCGRADS_TESTS_SERVER_CORE_COORDINATOR_APPLIED_COORDINATOR_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/coordinator/coordinator.h"
#include "server/core/coordinator/local_server.h"
#include "server/core/jobs/jobs.h"

namespace syncgrads::server {

// Has the methods of Coordinator; each of them applies the changes before it returns. Not
// thread-safe: for tests with one thread.
class AppliedCoordinator : public Coordinator {
 public:
  AppliedCoordinator(CoordinatorOptions options, PlanLog log, Jobs& own, const Clock& clock,
                     Journal& journal)
      : Coordinator(std::move(options), std::move(log), own, clock, journal), own_(own) {
    own.prepared().SetSink([this](const GroupPrepared& prepared) {
      waiting_.push_back([=, this] { Coordinator::Prepared(ServerIndex{0}, prepared); });
    });
  }
  ~AppliedCoordinator() { own_.prepared().SetSink(nullptr); }

  // Attaches the own server. Must be called before every other method except Restore.
  void Start(const std::vector<HeldRounds>& held = {}) {
    AttachOwn(std::make_shared<LocalServer>(own_, *this,
                                            [this](std::function<void()> closure) {
                                              waiting_.push_back(std::move(closure));
                                            }),
              held);
    Apply();
  }
  absl::StatusOr<MemberKey> Admit(const Hello& hello, std::shared_ptr<MemberLink> link) {
    return Applying(Coordinator::Admit(hello, std::move(link)));
  }
  void Register(const MemberKey& member, uint64_t request, const GroupSpec& spec,
                double link_rate = 0) {
    Coordinator::Register(member, request, spec, link_rate);
    Apply();
  }
  void End(const MemberKey& member, uint64_t request, GroupId group, Round last_round,
           bool follows) {
    Coordinator::End(member, request, group, last_round, follows);
    Apply();
  }
  void Leave(const MemberKey& member, uint64_t request, std::vector<GroupRound> last_rounds) {
    Coordinator::Leave(member, request, std::move(last_rounds));
    Apply();
  }
  void Ready(const MemberKey& member, uint64_t request, GroupId group) {
    Coordinator::Ready(member, request, group);
    Apply();
  }
  absl::Status AttachServer(const ServerIdentity& server, std::shared_ptr<ServerLink> link) {
    return Applying(Coordinator::AttachServer(server, std::move(link)));
  }
  void DetachServer(ServerIndex server, const ServerLink* link) {
    Coordinator::DetachServer(server, link);
    Apply();
  }
  void Applied(ServerIndex server, const ServerLink* link, uint64_t sequence) {
    Coordinator::Applied(server, link, sequence);
    Apply();
  }
  void Arrived(ServerIndex server, const std::vector<Arrival>& arrivals) {
    Coordinator::Arrived(server, arrivals);
    Apply();
  }
  void Reduced(ServerIndex server, const std::vector<ReducedChunk>& chunks) {
    Coordinator::Reduced(server, chunks);
    Apply();
  }
  void Prepared(ServerIndex server, const GroupPrepared& prepared) {
    Coordinator::Prepared(server, prepared);
    Apply();
  }
  void OpenRounds(ServerIndex server, uint64_t sequence, const std::vector<GroupRound>& rounds) {
    Coordinator::OpenRounds(server, sequence, rounds);
    Apply();
  }
  absl::Status Evict(const std::string& job, const std::string& token, const std::string& worker,
                     const std::string& reason) {
    return Applying(Coordinator::Evict(job, token, worker, reason));
  }
  absl::StatusOr<uint64_t> SetLearningRate(const std::string& job, const std::string& token,
                                           double factor, const std::string& by) {
    return Applying(Coordinator::SetLearningRate(job, token, factor, by));
  }
  void SetLearningRate(const MemberKey& member, uint64_t request, double factor) {
    Coordinator::SetLearningRate(member, request, factor);
    Apply();
  }
  void Tick() {
    Coordinator::Tick();
    Apply();
  }
  void CloseAll(const std::string& reason) {
    Coordinator::CloseAll(reason);
    Apply();
  }

 private:
  // A closure may call this object again. Changes that this adds are queued and applied after it.
  void Apply() {
    if (std::exchange(applying_, true)) return;
    while (!waiting_.empty()) {
      const std::function<void()> closure = std::move(waiting_.front());
      waiting_.pop_front();
      closure();
    }
    applying_ = false;
  }

  template <typename Result>
  Result Applying(Result result) {
    Apply();
    return result;
  }

  Jobs& own_;
  std::deque<std::function<void()>> waiting_;
  bool applying_ = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_TESTS_SERVER_CORE_COORDINATOR_APPLIED_COORDINATOR_H_
