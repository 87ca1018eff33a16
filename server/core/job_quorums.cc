// CoordinatedJob: how rounds of groups with a quorum are decided.

#include <algorithm>
#include <set>
#include <utility>

#include "server/core/coordinated_job.h"

namespace syncgrads::server {

void CoordinatedJob::BeginTally(const std::shared_ptr<const GroupPlan>& plan) {
  if (const auto* quorum = std::get_if<Quorum>(&plan->spec.policy)) {
    tallies_.try_emplace(plan->id, *quorum,
                         std::set<ServerIndex>(plan->servers.begin(), plan->servers.end()));
  }
  if (NeedsNorms(plan->spec)) norm_tallies_.try_emplace(plan->id, plan);
}

void CoordinatedJob::Arrived(ServerIndex server, const Arrival& arrival) {
  if (arrival.generation != generation_) return;
  const auto tally = tallies_.find(arrival.group);
  if (tally != tallies_.end()) tally->second.Arrived(server, arrival.round, arrival.member);
}

void CoordinatedJob::DecideRounds() {
  // While an epoch is proposed it is not known which rounds it will begin with.
  if (closed() || !has_begun() || proposal_.has_value()) return;
  for (auto& [group, tally] : tallies_) {
    while (DecideRound(group, tally)) continue;
  }
}

void CoordinatedJob::PassDecided(std::vector<GroupRound>& first_rounds) const {
  for (GroupRound& first : first_rounds) {
    const auto tally = tallies_.find(first.group);
    if (tally == tallies_.end() || !tally->second.any_decided()) continue;
    first.round = std::max(first.round, tally->second.next());
  }
}

bool CoordinatedJob::DecideRound(GroupId group, QuorumTally& tally) {
  const std::shared_ptr<Job> here = with_.own.Find(name_);
  if (here == nullptr) return false;
  const std::shared_ptr<const Roster> roster = here->roster();
  const Epoch* epoch = roster->EpochOf(group, tally.next());
  if (epoch == nullptr) return false;
  std::vector<MemberId> with_data;
  // A newcomer is waited for, or the others would be ahead of the state that it gets.
  std::set<MemberId> newcomers;
  for (const Member& member : epoch->members) {
    if (!roster->Find(member.id)->HasData(group, tally.next())) continue;
    with_data.push_back(member.id);
    const auto state = members_.find(member.id);
    if (state != members_.end() && state->second.behind) newcomers.insert(member.id);
  }
  if (with_data.empty() && epoch->number != roster->newest_epoch()->number) {
    // Those who follow close it by themselves, on their way to the newest epoch's rounds.
    tally.Decided(tally.next());
    return true;
  }
  std::optional<std::vector<MemberId>> set = tally.Decide(with_data, newcomers, with_.clock.Now());
  if (!set.has_value()) return false;
  const Round round = tally.next();
  Append(QuorumSet{group, round, *std::move(set)});
  tally.Decided(round);
  return true;
}

}  // namespace syncgrads::server
