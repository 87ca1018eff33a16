// What must hold of versions: of groups whose contributions are applied one by one, as
// they come.
//
//   - what is sent is stored, and neither it nor a member's clock ever goes back
//   - a version is what the first parameters and each contribution that its clocks
//     count come to, every one of them once; who is answered finds its own in it
//   - who is answered is not further ahead of anybody with data than the bound
//
// The order in which contributions were applied is not known. The simulation's
// optimizer is plain gradient descent over such numbers that it does not matter.

#ifndef SYNCGRADS_TESTS_SIM_VERSIONS_CHECKER_H_
#define SYNCGRADS_TESTS_SIM_VERSIONS_CHECKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/round_result.h"
#include "server/state/slot_record.h"
#include "tests/sim/contributions.h"
#include "tests/sim/job_history.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

class VersionsChecker {
 public:
  // All must outlive it.
  VersionsChecker(World& world, const Contributions& contributions)
      : world_(world), contributions_(contributions) {}

  // A server gives a member its answer, which is no error.
  void OnResult(const JobHistory& job, const GroupPlan& plan, MemberId member,
                const UpdateHeader& header, const server::RoundResult& sent);
  // The member gets it.
  void OnAnswer(MemberId member, const UpdateFrame& answer);

  // Whether a member that ends a step may have this as a tensor's value: what it was
  // sent of each chunk.
  bool MayHave(const GroupPlan& plan, Generation generation, MemberId member, Round clock,
               TensorId tensor, const std::string& values) const;

  uint64_t results() const { return results_; }
  // The largest clock of all.
  uint64_t furthest() const { return furthest_; }

 private:
  using ChunkKey = std::tuple<Generation, GroupId, ChunkId>;
  // The newest of a chunk that was sent.
  struct Version {
    Round number{};
    std::map<MemberId, Round> clocks;
    std::string values;
    // The parameters that the chunk began with.
    std::string first;
  };

  // An answer counts what its member contributed.
  void CheckCounts(const GroupPlan& plan, MemberId member, const UpdateHeader& header);
  // Takes the version for the newest if it can be it.
  bool CheckVersion(const GroupPlan& plan, const RoundKey& key, const server::RoundRecord& record,
                    const std::string& values);
  // Whether a member that `clocks` know has given these for the first parameters.
  bool WereGiven(const RoundKey& key, const std::map<MemberId, Round>& clocks,
                 const std::string& values) const;
  // What `first` and the contributions that `clocks` count come to; nothing, and a
  // failure, if they cannot be counted, or are not `count` in all.
  std::optional<std::string> Sum(const GroupPlan& plan, const RoundKey& key,
                                 const std::map<MemberId, Round>& clocks, uint64_t count,
                                 const std::string& first);
  void CheckBound(const JobHistory& job, const Staleness& staleness, MemberId member,
                  const RoundKey& key);
  void Fail(const RoundKey& key, const std::string& what);

  World& world_;
  const Contributions& contributions_;
  std::map<ChunkKey, Version> newest_;
  // By push: what its sender was answered, and what of that has arrived.
  std::map<std::pair<RoundKey, MemberId>, std::vector<std::string>> sent_, received_;
  uint64_t results_ = 0;
  uint64_t furthest_ = 0;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_VERSIONS_CHECKER_H_
