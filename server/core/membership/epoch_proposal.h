// The first rounds of a proposed epoch, as the servers answer. For each group, a server answers
// with the oldest round that has no contribution there, and holds that round and later ones.
// The epoch begins at the newest of these answers.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_EPOCH_PROPOSAL_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_EPOCH_PROPOSAL_H_

#include <cstdint>
#include <map>
#include <vector>

#include "common/ids.h"
#include "common/signals/membership.h"

namespace syncgrads::server {

// Not thread-safe; owned by a job's JobEpochs and protected by Coordinator::mutex_.
class EpochProposal {
 public:
  // `sequence` is the number of the EpochProposed change.
  EpochProposal(uint64_t sequence, uint32_t servers)
      : sequence_(sequence), answered_(servers, false) {}

  uint64_t sequence() const { return sequence_; }

  // Adds a server's answer. A server may repeat it; the newest round of all answers counts.
  void Answer(ServerIndex server, const std::vector<GroupRound>& oldest_rounds);

  bool answered_by_all() const;

  // The first round of each group. Requires answered_by_all().
  std::vector<GroupRound> FirstRounds() const;

 private:
  uint64_t sequence_;
  std::vector<bool> answered_;  // by server index
  std::map<GroupId, Round> first_rounds_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_EPOCH_PROPOSAL_H_
