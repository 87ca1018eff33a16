// Checks the rounds of groups with the policies Sync, First and Quorum. It computes each result
// again from the contributions that the result lists. Not thread-safe; owned by the Checker.

#ifndef SYNCGRADS_TESTS_SIM_ROUNDS_CHECKER_H_
#define SYNCGRADS_TESTS_SIM_ROUNDS_CHECKER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/group/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/rounds/round_result.h"
#include "tests/sim/contributions.h"
#include "tests/sim/job_history.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

class RoundsChecker {
 public:
  // All arguments must outlive this object.
  RoundsChecker(World& world, const Contributions& contributions)
      : world_(world), contributions_(contributions) {}

  // The result of one round of one chunk.
  struct Result {
    UpdateHeader header;
    std::string payload;
    // With an optimizer on the servers only: the optimizer's slots, and the number of updates of
    // each span.
    std::vector<std::string> slots;
    std::vector<uint64_t> updates;
  };

  // A server passes a result, which is not an error, to its transport.
  void OnResult(const JobHistory& job, const GroupPlan& plan, const UpdateHeader& header,
                const server::RoundResult& sent, bool with_payload);
  // A worker receives a result.
  void OnAnswer(const JobHistory& job, const GroupPlan& plan, MemberId member,
                const UpdateFrame& answer);
  // An epoch begins with this round, so the round must not have closed yet.
  void OnFirstRound(Generation generation, const GroupRound& first);

  // Returns null if the result has not been sent.
  const Result* Find(const RoundKey& key) const;
  uint64_t results() const { return results_.size(); }
  // The newest round for which a result has been sent. Groups with the policy First (handovers) do
  // not count.
  uint64_t furthest() const { return furthest_; }

 private:
  void CheckFirst(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                  const server::RoundResult& sent, Result& result);
  // Sets `made_of` to the contributions that a result lists, in rank order. Reports a failure and
  // returns false if the list is wrong.
  bool CheckContributors(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                         const UpdateHeader& header, std::vector<const Contribution*>& made_of);
  // Checks that the members that are not among `ranks` may be missing from the round, and that only
  // members of the quorum's set are among them.
  bool CheckMissing(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                    const Epoch& epoch, const std::vector<uint32_t>& ranks);
  // Returns true if the round may close without a contribution of this member.
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
