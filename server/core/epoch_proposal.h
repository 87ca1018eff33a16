// A change to a new epoch while the servers are asked from which rounds on it can
// be: each names the oldest round of a group that nobody there has contributed to,
// and holds it. The epoch begins at the newest of these.

#ifndef SYNCGRADS_SERVER_CORE_EPOCH_PROPOSAL_H_
#define SYNCGRADS_SERVER_CORE_EPOCH_PROPOSAL_H_

#include <cstdint>
#include <map>
#include <vector>

#include "common/ids.h"
#include "common/membership.h"

namespace syncgrads::server {

// Not thread-safe.
class EpochProposal {
 public:
  // `sequence` is the change that asked the servers.
  EpochProposal(uint64_t sequence, uint32_t servers)
      : sequence_(sequence), answered_(servers, false) {}

  uint64_t sequence() const { return sequence_; }

  // A server's answer; a second one changes nothing.
  void Answer(ServerIndex server, const std::vector<GroupRound>& oldest_rounds);

  bool answered_by_all() const;

  // Once answered by all.
  std::vector<GroupRound> FirstRounds() const;

 private:
  uint64_t sequence_;
  std::vector<bool> answered_;  // by server
  std::map<GroupId, Round> first_rounds_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_EPOCH_PROPOSAL_H_
