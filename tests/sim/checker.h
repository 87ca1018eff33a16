// What must hold, whatever happens: watches everything that is stored, sent and
// received.
//
//   - what is sent of a round is always the same, also after a crash, and is stored
//   - a result is the rule's, of one contribution of each stated contributor, made
//     by a member of the round's epoch and delivered while it was one
//   - where the coordinator says who counts in a round, it does so once, of members
//     whose contributions are complete on every server, stores it before it says so,
//     and all chunks are closed with those
//   - where contributions are applied one by one: see versions_checker.h
//   - a contribution is the same bytes whenever it is sent
//   - bytes do not change on their way
//   - who is answered with a result has been counted, or was late
//   - nobody is refused without a reason
//   - all replicas of a step are the same

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

#include "common/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/plan_change.h"
#include "server/core/round_result.h"
#include "server/core/store.h"
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

  // A server has stored a record, and will build on it.
  void OnStored(ServerIndex server, const server::Stored& record);
  // The coordinator tells another server of a change.
  void OnTold(const server::PlanChange& change);

  // A worker gives a push to its transport; and a server gets one.
  void OnPushWritten(const std::string& bytes);
  void OnPushDelivered(ServerIndex server, const PushHeader& push);

  // A server gives the answer to a member's push to its transport.
  void OnResult(MemberId member, const server::RoundResult& result, bool with_payload);
  // A worker gets an answer to its push.
  void OnAnswer(MemberId member, const UpdateFrame& answer);

  // A worker has ended a step with this state.
  void OnStep(const std::string& worker, Generation generation, uint64_t step,
              const std::string& state);
  // All followed the others to the end: they end with this.
  void OnEnd(const std::string& worker, Generation generation, uint64_t steps,
             const std::string& state);

  // As a worker is to have them after a step: what results say of a tensor.
  // Empty if nobody contributed, or it is not known.
  struct TensorResult {
    bool known = false;
    std::string bytes;
    uint32_t least = 0, most = 0;
  };
  TensorResult ResultOf(Generation generation, const std::string& group, uint64_t step,
                        TensorId tensor) const;
  // The same where each worker has versions of its own: whether these can be the
  // values of its step.
  bool MayHave(Generation generation, const std::string& group, MemberId member, uint64_t step,
               TensorId tensor, const std::string& values) const;

  // As whom a worker was let in; nothing if it was not.
  struct Admission {
    Generation generation{};
    MemberId member{};
  };
  std::optional<Admission> AdmissionOf(Incarnation incarnation) const;
  // A job has begun; has come to its end after that, or was lost with a server's state.
  bool any_begun() const;
  bool any_closed() const;
  void OnStateLost() { state_lost_ = true; }
  bool state_lost() const { return state_lost_; }

  // Whether a member has a reason to be refused: it was dropped, or its job is over.
  bool MayBeRefused(Generation generation, MemberId member) const;
  // Members that were dropped, in words; not newcomers whom all others left alone.
  const std::vector<std::string>& dropped() const { return dropped_; }
  // Steps of the training group whose results have been sent.
  uint64_t furthest() const { return std::max(rounds_.furthest(), versions_.furthest()); }
  uint64_t results() const { return rounds_.results() + versions_.results(); }
  // Sets of contributors that the coordinator has fixed without some who had data.
  uint64_t left_behind() const { return left_behind_; }
  uint64_t epochs() const;
  // Members were dropped before anybody could have given their state: the job may
  // have ended with that.
  bool lost_at_the_start() const;

 private:
  void OnChange(ServerIndex server, const server::PlanChange& change);
  void OnGone(JobHistory& job, const server::MemberGone& gone);
  void OnEpoch(Generation generation, JobHistory& job, const Epoch& epoch);
  void OnQuorumSet(Generation generation, JobHistory& job, const server::QuorumSet& set);
  // Of a group by its name; null if nobody has registered it.
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
