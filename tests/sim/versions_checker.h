// Checks groups with the policy Staleness, whose contributions are applied one by one. Each applied
// contribution makes a new version of a chunk.
//
//   - A version is stored before it is sent. Neither versions nor members' clocks go back.
//   - A version is the first parameters plus each contribution that its clocks count, each applied
//     exactly once. A worker that is answered finds its own contribution in it.
//   - A worker that is answered is not further ahead of any member with data than the bound.
//
// The order in which contributions were applied is not known. The simulation's optimizer is plain
// gradient descent, on numbers for which the order does not change the result.
//
// Not thread-safe; owned by the Checker.

#ifndef SYNCGRADS_TESTS_SIM_VERSIONS_CHECKER_H_
#define SYNCGRADS_TESTS_SIM_VERSIONS_CHECKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/group/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/rounds/round_result.h"
#include "server/state/slot_record.h"
#include "tests/sim/contributions.h"
#include "tests/sim/job_history.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

class VersionsChecker {
 public:
  // All arguments must outlive this object.
  VersionsChecker(World& world, const Contributions& contributions)
      : world_(world), contributions_(contributions) {}

  // A server passes the answer to a member's push, which is not an error, to its transport.
  void OnResult(const JobHistory& job, const GroupPlan& plan, MemberId member,
                const UpdateHeader& header, const server::RoundResult& sent);
  // The member receives the answer.
  void OnAnswer(MemberId member, const UpdateFrame& answer);

  // Returns whether a member that ends a step may have these values of a tensor: for each chunk,
  // they must be among the answers that it received.
  bool MayHave(const GroupPlan& plan, Generation generation, MemberId member, Round clock,
               TensorId tensor, const std::string& values) const;

  uint64_t results() const { return results_; }
  // The largest clock of all members.
  uint64_t furthest() const { return furthest_; }

 private:
  using ChunkKey = std::tuple<Generation, GroupId, ChunkId>;
  // The newest version of a chunk that was sent.
  struct Version {
    Round number{};
    std::map<MemberId, Round> clocks;
    std::string values;
    // The chunk's first parameters.
    std::string first;
  };

  // Checks that the counts of an answer are those of the receiver's own contribution.
  void CheckCounts(const GroupPlan& plan, MemberId member, const UpdateHeader& header);
  // Checks a version that is sent. If it is correct, it becomes the newest version.
  bool CheckVersion(const GroupPlan& plan, const RoundKey& key, const server::RoundRecord& record,
                    const std::string& values);
  // Returns true if a member that is in `clocks` has pushed these values as first parameters.
  bool WereGiven(const RoundKey& key, const std::map<MemberId, Round>& clocks,
                 const std::string& values) const;
  // Returns `first` plus the contributions that `clocks` count. Reports a failure and returns
  // nullopt if a contribution may not be counted, or if their number is not `count`.
  std::optional<std::string> Sum(const GroupPlan& plan, const RoundKey& key,
                                 const std::map<MemberId, Round>& clocks, uint64_t count,
                                 const std::string& first);
  void CheckBound(const JobHistory& job, const Staleness& staleness, MemberId member,
                  const RoundKey& key);
  void Fail(const RoundKey& key, const std::string& what);

  World& world_;
  const Contributions& contributions_;
  std::map<ChunkKey, Version> newest_;
  // For each push: the answers that were sent to its sender, and those that have arrived.
  std::map<std::pair<RoundKey, MemberId>, std::vector<std::string>> sent_, received_;
  uint64_t results_ = 0;
  uint64_t furthest_ = 0;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_VERSIONS_CHECKER_H_
