#include "server/core/coordinator/quorum_tally.h"

#include <algorithm>
#include <cstdint>

namespace syncgrads::server {
namespace {

// A member waits for the result of a step before it contributes to the next one. More than one step
// ahead is possible while decisions are on their way to the servers.
constexpr uint64_t kMostAhead = 1024;

}  // namespace

void QuorumTally::Arrived(ServerIndex server, Round round, MemberId member) {
  if (round < next_ || ToNumber(round) - ToNumber(next_) > kMostAhead) return;
  if (!servers_.contains(server)) return;
  arrived_[round][member].insert(server);
}

std::optional<std::vector<MemberId>> QuorumTally::Decide(const std::vector<MemberId>& with_data,
                                                         const std::set<MemberId>& required,
                                                         absl::Time now) {
  const auto round = arrived_.find(next_);
  if (round == arrived_.end() || with_data.empty()) return std::nullopt;
  std::vector<MemberId> complete;
  for (MemberId member : with_data) {
    const auto servers = round->second.find(member);
    if (servers != round->second.end() && servers->second == servers_) complete.push_back(member);
  }
  const size_t needed = std::min<size_t>(quorum_.least, with_data.size());
  const bool all_required =
      std::all_of(required.begin(), required.end(), [&complete](MemberId member) {
        return std::find(complete.begin(), complete.end(), member) != complete.end();
      });
  if (complete.size() < needed || !all_required) return std::nullopt;
  if (!reached_.has_value()) reached_ = now;
  if (complete.size() < with_data.size() && now - *reached_ < quorum_.grace) return std::nullopt;
  return complete;
}

void QuorumTally::Decided(Round round) {
  if (round < next_) return;
  next_ = Next(round);
  arrived_.erase(arrived_.begin(), arrived_.lower_bound(next_));
  reached_.reset();
}

}  // namespace syncgrads::server
