#include "server/core/membership/epoch_proposal.h"

#include <algorithm>

namespace syncgrads::server {

void EpochProposal::Answer(ServerIndex server, const std::vector<GroupRound>& oldest_rounds) {
  for (const GroupRound& oldest : oldest_rounds) {
    Round& first = first_rounds_[oldest.group];
    first = std::max(first, oldest.round);
  }
  answered_[ToNumber(server)] = true;
}

bool EpochProposal::answered_by_all() const {
  return std::all_of(answered_.begin(), answered_.end(), [](bool answer) { return answer; });
}

std::vector<GroupRound> EpochProposal::FirstRounds() const {
  std::vector<GroupRound> rounds;
  for (const auto& [group, round] : first_rounds_) rounds.push_back({group, round});
  return rounds;
}

}  // namespace syncgrads::server
