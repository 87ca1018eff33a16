// What must hold of rounds: of groups whose chunks are closed round by round, with
// `sync`, with the first, or with a quorum. Works out each result again from the
// contributions that the server says it is made of.

#ifndef SYNCGRADS_TESTS_SIM_ROUNDS_CHECKER_H_
#define SYNCGRADS_TESTS_SIM_ROUNDS_CHECKER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/round_result.h"
#include "tests/sim/contributions.h"
#include "tests/sim/job_history.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

class RoundsChecker {
 public:
  // All must outlive it.
  RoundsChecker(World& world, const Contributions& contributions)
      : world_(world), contributions_(contributions) {}

  // What a round came to.
  struct Result {
    UpdateHeader header;
    std::string payload;
    // Of an optimizer on the server: by span.
    std::vector<std::string> slots;
    std::vector<uint64_t> updates;
  };

  // A server gives a result, which is no error, to its transport.
  void OnResult(const JobHistory& job, const GroupPlan& plan, const UpdateHeader& header,
                const server::RoundResult& sent, bool with_payload);
  // A worker gets one.
  void OnAnswer(const JobHistory& job, const GroupPlan& plan, MemberId member,
                const UpdateFrame& answer);
  // An epoch begins with this round, which cannot have closed.
  void OnFirstRound(Generation generation, const GroupRound& first);

  // Null unless it has been sent.
  const Result* Find(const RoundKey& key) const;
  uint64_t results() const { return results_.size(); }
  // The newest round of a group that is no handover's.
  uint64_t furthest() const { return furthest_; }

 private:
  void CheckFirst(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                  const server::RoundResult& sent, Result& result);
  // The contributions that a result says it is made of, in rank order. False if it
  // cannot be.
  bool CheckContributors(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                         const UpdateHeader& header, std::vector<const Contribution*>& made_of);
  // Whether those who are not among `ranks` need not be.
  bool CheckMissing(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                    const Epoch& epoch, const std::vector<uint32_t>& ranks);
  // Whether a round may close without a contribution of this member.
  bool MayBeMissing(const JobHistory& job, const RoundKey& key, MemberId member) const;
  void CheckValues(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                   const std::vector<const Contribution*>& made_of, Result& result);
  void Fail(const RoundKey& key, const std::string& what);

  World& world_;
  const Contributions& contributions_;
  std::map<RoundKey, Result> results_;
  uint64_t furthest_ = 0;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_ROUNDS_CHECKER_H_
