// Checks the invariants of the protocol at every message and every stored record:
//
//   - A result of a round is the same each time it is sent, also after a crash, and it is stored
//     before it is sent.
//   - A result is what the update rule gives for one contribution of each listed contributor. Each
//     contributor is a member of the round's epoch, and its contribution was delivered while it was
//     a member.
//   - Quorum: the coordinator fixes the contributor set of a round once. The contributions of its
//     members are complete on every server. The set is stored before it is sent, and every chunk
//     closes with exactly these members.
//   - Staleness: see versions_checker.h.
//   - A contribution has the same bytes each time it is sent.
//   - Bytes do not change between sender and receiver.
//   - A worker that receives a result has been counted in it, or was late.
//   - A learning rate factor that was stored is that of every epoch that is stored later, and each
//     step is made with the factor of its epoch.
//   - No member is refused without a reason.
//   - After each step, all replicas are equal.
//
// The first violation is reported by World::Fail(). Not thread-safe: called by the events of one
// World.

#ifndef SYNCGRADS_TESTS_SIM_CHECKER_H_
#define SYNCGRADS_TESTS_SIM_CHECKER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/group/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/store.h"
#include "server/core/rounds/round_result.h"
#include "tests/sim/contributions.h"
#include "tests/sim/job_history.h"
#include "tests/sim/rounds_checker.h"
#include "tests/sim/versions_checker.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

class Checker {
 public:
  explicit Checker(World& world)
      : world_(world), rounds_(world, contributions_), versions_(world, contributions_) {}

  // A server has stored a record, and will act on it.
  void OnStored(ServerIndex server, const server::Stored& record);
  // The coordinator sends a change to another server.
  void OnTold(const server::PlanChange& change);

  // OnPushWritten: a worker passes a push to its transport. OnPushDelivered: the push arrives at a
  // server that has applied the plan up to the sequence number `applied`.
  void OnPushWritten(const std::string& bytes);
  void OnPushDelivered(ServerIndex server, uint64_t applied, const PushHeader& push);

  // A server passes the answer to a member's push to its transport. `with_payload`: the answer has
  // the payload and not only the header.
  void OnResult(MemberId member, const server::RoundResult& result, bool with_payload);
  // A worker receives the answer to its push.
  void OnAnswer(MemberId member, const UpdateFrame& answer);

  // A worker has ended a step. `state` is its parameters afterwards.
  void OnStep(const std::string& worker, Generation generation, uint64_t step,
              const std::string& state);
  // A worker has followed the others to the end of the data. All such workers must end with the
  // same step and the same parameters.
  void OnEnd(const std::string& worker, Generation generation, uint64_t steps,
             const std::string& state);

  // The result of a tensor in one step, assembled from the results of its chunks. `bytes` is empty
  // if no member contributed or if the result is not known. `known` is false if a chunk has not
  // closed. `least` and `most` are the numbers of contributors over the tensor's spans.
  struct TensorResult {
    bool known = false;
    std::string bytes;
    uint32_t least = 0, most = 0;
  };
  TensorResult ResultOf(Generation generation, const std::string& group, uint64_t step,
                        TensorId tensor) const;
  // Staleness only: returns whether `values` can be the tensor's parameters for this member after
  // this step.
  bool MayHave(Generation generation, const std::string& group, MemberId member, uint64_t step,
               TensorId tensor, const std::string& values) const;

  // The learning rate factor of a step's epoch.
  double RateFactorOf(Generation generation, const std::string& group, uint64_t step) const;

  // The generation and the member number with which the coordinator admitted a worker.
  // AdmissionOf() returns nullopt if the worker has not been admitted.
  struct Admission {
    Generation generation{};
    MemberId member{};
  };
  std::optional<Admission> AdmissionOf(Incarnation incarnation) const;
  // any_begun: a job has begun. any_closed: a job that had begun has been closed, or was lost with
  // a server's state.
  bool any_begun() const;
  bool any_closed() const;
  void OnStateLost() { state_lost_ = true; }
  bool state_lost() const { return state_lost_; }

  // Returns true if there is a reason to refuse the member: it was dropped or has left, or its job
  // is closed or unknown.
  bool MayBeRefused(Generation generation, MemberId member) const;
  // One text for each member that was dropped. Excludes newcomers that were left without any other
  // member.
  const std::vector<std::string>& dropped() const { return dropped_; }
  // The newest step of the training group for which a result has been sent.
  uint64_t furthest() const { return std::max(rounds_.furthest(), versions_.furthest()); }
  uint64_t results() const { return rounds_.results() + versions_.results(); }
  // The number of contributor sets that the coordinator has fixed without some members that had
  // data.
  uint64_t left_behind() const { return left_behind_; }
  uint64_t epochs() const;
  // Returns true if members were dropped before the first result was sent. No member could have
  // handed over its state then, so the job may have ended.
  bool lost_at_the_start() const;

 private:
  void OnChange(ServerIndex server, const server::PlanChange& change);
  void OnGone(JobHistory& job, const server::MemberGone& gone);
  void OnEpoch(Generation generation, JobHistory& job, const Epoch& epoch);
  void OnQuorumSet(Generation generation, JobHistory& job, const server::QuorumSet& set);
  // Returns the group of this name, or null if it has not been registered.
  const GroupPlan* Find(Generation generation, const std::string& group) const;

  World& world_;
  std::map<Generation, JobHistory> jobs_;
  std::map<Incarnation, Admission> admissions_;
  std::set<Generation> closed_;
  Contributions contributions_;
  RoundsChecker rounds_;
  VersionsChecker versions_;
  std::map<std::pair<Generation, uint64_t>, std::pair<std::string, std::string>> states_;
  struct End {
    std::string worker;
    uint64_t steps = 0;
    std::string state;
  };
  std::map<Generation, End> ends_;
  std::vector<std::string> dropped_;
  uint64_t left_behind_ = 0;
  bool state_lost_ = false;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_CHECKER_H_
