#include "server/core/coordinator/round_decisions.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "common/planted_bug.h"

namespace syncgrads::server {

void RoundDecisions::Add(const std::shared_ptr<const GroupPlan>& plan) {
  if (const auto* quorum = std::get_if<Quorum>(&plan->spec.policy)) {
    quorums_.try_emplace(plan->id, *quorum,
                         std::set<ServerIndex>(plan->servers.begin(), plan->servers.end()));
  }
  if (NeedsNorms(plan->spec)) norms_.try_emplace(plan->id, plan);
}

void RoundDecisions::Restore(const PlanChange& change) {
  if (const auto* plan = std::get_if<std::shared_ptr<const GroupPlan>>(&change.kind)) {
    Add(*plan);
  } else if (const auto* set = std::get_if<QuorumSet>(&change.kind)) {
    const auto tally = quorums_.find(set->group);
    if (tally != quorums_.end()) tally->second.Decided(set->round);
  } else if (const auto* norms = std::get_if<StepNorms>(&change.kind)) {
    const auto tally = norms_.find(norms->group);
    if (tally != norms_.end()) tally->second.Decided(*norms);
  }
}

void RoundDecisions::Arrived(ServerIndex server, const Arrival& arrival) {
  const auto tally = quorums_.find(arrival.group);
  // A server that lies may name members without end.
  if (tally == quorums_.end() || plan_.roster().Find(arrival.member) == nullptr) return;
  tally->second.Arrived(server, arrival.round, arrival.member);
}

void RoundDecisions::DecideQuorums(absl::Time now) {
  for (auto& [group, tally] : quorums_) {
    while (DecideQuorum(group, tally, now)) continue;
  }
}

void RoundDecisions::PassDecided(std::vector<GroupRound>& first_rounds) const {
  if (IsPlanted(PlantedBug::kDecidedStepOfNewcomers)) return;
  for (GroupRound& first : first_rounds) {
    const auto tally = quorums_.find(first.group);
    if (tally == quorums_.end() || !tally->second.any_decided()) continue;
    first.round = std::max(first.round, tally->second.next());
  }
}

bool RoundDecisions::DecideQuorum(GroupId group, QuorumTally& tally, absl::Time now) {
  const Roster& roster = plan_.roster();
  const Epoch* epoch = roster.EpochOf(group, tally.next());
  if (epoch == nullptr) {
    if (roster.newest_epoch() == nullptr) return false;
    // The round belongs to an epoch that the roster no longer has; its rounds have all closed.
    tally.Decided(roster.LastRoundBeforeNextEpoch(group, tally.next()));
    return true;
  }
  std::vector<MemberId> with_data;
  // Newcomers that are not up to date. The set must include them: otherwise the others would
  // be ahead of the state that a newcomer receives.
  std::set<MemberId> newcomers;
  for (const Member& member : epoch->members) {
    if (!roster.Find(member.id)->HasData(group, tally.next())) continue;
    with_data.push_back(member.id);
    if (holders_.IsBehind(member.id)) newcomers.insert(member.id);
  }
  if (with_data.empty() && epoch->number != roster.newest_epoch()->number &&
      !IsPlanted(PlantedBug::kRoundLeftUndecided)) {
    // No member has data for the round, and so none for the later rounds of its epoch. They close
    // without a decision, with the skips of the members that follow until the newest epoch's
    // rounds.
    tally.Decided(roster.LastRoundBeforeNextEpoch(group, tally.next()));
    return true;
  }
  std::optional<std::vector<MemberId>> set = tally.Decide(with_data, newcomers, now);
  if (!set.has_value()) return false;
  const Round round = tally.next();
  plan_.Append(QuorumSet{group, round, *std::move(set)});
  tally.Decided(round);
  return true;
}

void RoundDecisions::Reduced(ServerIndex server, const ReducedChunk& chunk) {
  const auto found = norms_.find(chunk.group);
  if (found == norms_.end()) return;
  NormTally& tally = found->second;
  tally.Reduced(server, chunk);
  // Norms are decided also while an epoch is proposed. A round that is reduced on any server
  // belongs to the present epoch. If no server has it reduced any more, and it moves to the
  // next epoch, servers ignore these norms: their epoch number differs.
  std::optional<StepNorms> norms = tally.Decide([&](Round round) {
    const Epoch* const epoch = plan_.roster().EpochOf(chunk.group, round);
    return epoch == nullptr ? uint64_t{0} : epoch->number;
  });
  if (!norms.has_value()) return;
  tally.Decided(*norms);
  plan_.Append(*std::move(norms));
}

void RoundDecisions::ForgetReduced(ServerIndex server) {
  for (auto& [group, tally] : norms_) tally.Forget(server);
}

}  // namespace syncgrads::server
