// What must hold, whatever happens: watches everything that is stored, sent and
// received, and works out each result again from the contributions that the server
// says it is made of.
//
//   - what is sent of a round is always the same, also after a crash, and is stored
//   - a result is the rule's, of one contribution of each stated contributor, made
//     by a member of the round's epoch and delivered while it was one
//   - a contribution is the same bytes whenever it is sent
//   - bytes do not change on their way
//   - who is answered with a result has been counted
//   - nobody is refused without a reason
//   - all replicas of a step are the same

#ifndef SYNCGRADS_TESTS_SIM_CHECKER_H_
#define SYNCGRADS_TESTS_SIM_CHECKER_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/group.h"
#include "common/ids.h"
#include "common/membership.h"
#include "common/wire/frame.h"
#include "server/core/round_result.h"
#include "server/core/store.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

class Checker {
 public:
  explicit Checker(World& world) : world_(world) {}

  // A server has stored a record, and will build on it.
  void OnStored(ServerIndex server, const server::Stored& record);

  // A worker gives a push to its transport; and a server gets one.
  void OnPushWritten(const std::string& bytes);
  void OnPushDelivered(ServerIndex server, const PushHeader& push);

  // A server gives a result to its transport.
  void OnResult(const server::RoundResult& result, bool with_payload);
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

  // As whom a worker was let in; nothing if it was not.
  struct Admission {
    Generation generation{};
    MemberId member{};
  };
  std::optional<Admission> AdmissionOf(Incarnation incarnation) const;
  bool any_admitted() const { return !admissions_.empty(); }
  // A job has come to its end, or was lost with a server's state.
  bool any_closed() const { return !closed_.empty() || state_lost_; }
  void OnStateLost() { state_lost_ = true; }
  bool state_lost() const { return state_lost_; }

  // Whether a member has a reason to be refused: it was dropped, or its job is over.
  bool MayBeRefused(Generation generation, MemberId member) const;
  // Members that were dropped, in words; not newcomers whom all others left alone.
  const std::vector<std::string>& dropped() const { return dropped_; }
  // Steps of the training group whose results have been sent.
  uint64_t furthest() const { return furthest_; }
  uint64_t results() const { return results_.size(); }
  uint64_t epochs() const;
  // Members were dropped before anybody could have given their state: the job may
  // have ended with that.
  bool lost_at_the_start() const;

 private:
  struct RoundKey {
    Generation generation{};
    GroupId group{};
    ChunkId chunk{};
    Round round{};
    friend auto operator<=>(const RoundKey&, const RoundKey&) = default;
  };
  struct Contribution {
    PushHeader header;
    std::string payload;
    std::string bytes;
  };
  struct Gone {
    bool in_order = false;
    std::vector<GroupRound> last_rounds;
  };
  struct Job {
    std::vector<Epoch> epochs;
    std::map<GroupId, std::shared_ptr<const GroupPlan>> groups;
    std::map<MemberId, Gone> gone;
    std::map<MemberId, std::map<GroupId, Round>> ended;
    // By server: who has gone, as far as it knows.
    std::map<ServerIndex, std::map<MemberId, Gone>> known_gone;
  };
  struct Result {
    std::string header;
    UpdateHeader decoded;
    std::string payload;
    // Of an optimizer on the server: by span.
    std::vector<std::string> slots;
    std::vector<uint64_t> updates;
  };

  void OnChange(ServerIndex server, const server::PlanChange& change);
  void OnEpoch(Generation generation, Job& job, const Epoch& epoch);
  // In no epoch, or not brought up to date.
  static bool IsNewcomer(const Job& job, MemberId member);
  // The epoch that a round belongs to; null if there is none.
  static const Epoch* EpochOf(const Job& job, GroupId group, Round round);
  static RoundKey KeyOf(const PushHeader& header);
  // Of a server that has heard that a member has gone: whether it may count it.
  static bool MayContribute(const Gone& gone, GroupId group, Round round);
  void CheckFirst(const RoundKey& key, const server::RoundResult& sent, Result& result);
  // The contributions that a result says it is made of, in rank order. False if it
  // cannot be.
  bool CheckContributors(const RoundKey& key, const Job& job, const GroupPlan& plan,
                         const UpdateHeader& header,
                         std::vector<const Contribution*>& contributions);
  const Contribution* FindContribution(const RoundKey& key, MemberId member, bool one_epoch,
                                       uint64_t epoch) const;
  // Whether a round may close without a contribution of this member.
  bool MayBeMissing(const RoundKey& key, const Job& job, MemberId member) const;
  void CheckValues(const RoundKey& key, const GroupPlan& plan,
                   const std::vector<const Contribution*>& contributions, Result& result);
  // One contribution's part of a span; null if it has none.
  static const std::byte* PartOf(const Contribution& contribution, const Chunk& chunk, size_t span);
  void Fail(const RoundKey& key, const std::string& what);

  World& world_;
  std::map<Generation, Job> jobs_;
  std::map<Incarnation, Admission> admissions_;
  std::set<Generation> closed_;
  std::map<std::pair<RoundKey, MemberId>, std::vector<Contribution>> contributions_;
  // Deliveries that a server may count.
  std::set<std::pair<RoundKey, MemberId>> delivered_;
  std::map<RoundKey, Result> results_;
  std::map<std::pair<Generation, uint64_t>, std::pair<std::string, std::string>> states_;
  struct End {
    std::string worker;
    uint64_t steps = 0;
    std::string state;
  };
  std::map<Generation, End> ends_;
  std::vector<std::string> dropped_;
  uint64_t furthest_ = 0;
  bool state_lost_ = false;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_CHECKER_H_
