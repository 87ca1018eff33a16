#include "server/core/rounds/round_policy.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "common/planted_bug.h"

namespace syncgrads::server {
namespace {

class SyncRounds : public RoundPolicy {
 public:
  std::vector<MemberId> Missing(const OpenRound& open) const override { return open.Awaited(); }
};

class FirstRounds : public RoundPolicy {
 public:
  std::vector<MemberId> Missing(const OpenRound& open) const override {
    return open.seats.AnyValues() ? std::vector<MemberId>() : open.Awaited();
  }
  bool MayClose(const OpenRound& open) const override { return open.seats.AnyValues(); }
  bool HasContributors(const OpenRound& open) const override { return open.seats.AnyValues(); }
  // The open round may never get a contribution with values. Its members begin the newest epoch
  // with a later round.
  bool GivesUpFor(Round later, GroupId group, const Roster& roster) const override {
    return FindRound(roster.newest_epoch()->first_rounds, group) == later;
  }
};

// Waits until the coordinator has fixed the members that count, and then for these members. They
// have all contributed once, but a server that was restarted since has lost their contributions.
class QuorumRounds : public RoundPolicy {
 public:
  QuorumRounds(const Quorum& quorum, bool holds_parameters)
      : quorum_(quorum), holds_parameters_(holds_parameters) {}

  std::vector<MemberId> Missing(const OpenRound& open) const override {
    std::vector<MemberId> missing = open.Awaited();
    const std::vector<MemberId>* set = Find(open.round);
    if (set != nullptr) {
      std::erase_if(missing, [set](MemberId id) { return !Has(*set, id); });
    }
    return missing;
  }
  bool MayClose(const OpenRound& open) const override {
    if (IsInitial(open.round) || Find(open.round) != nullptr) return Missing(open).empty();
    return NobodyHasData(open);
  }
  bool HasContributors(const OpenRound& open) const override {
    return IsInitial(open.round) ? open.AnyData() : Find(open.round) != nullptr;
  }
  bool Counts(Round round, MemberId member) const override {
    const std::vector<MemberId>* set = Find(round);
    return set == nullptr || Has(*set, member) || IsPlanted(PlantedBug::kLateContributionCounted);
  }

  void Fix(Round round, std::vector<MemberId> members) override {
    sets_[round] = std::move(members);
  }
  void Closed(Round round) override { sets_.erase(sets_.begin(), sets_.upper_bound(round)); }

  bool leaves_behind() const override { return true; }
  size_t kept() const override { return holds_parameters_ ? 1 : quorum_.kept; }

 private:
  // Round 0, which has the initial parameters, waits for all members.
  bool IsInitial(Round round) const { return holds_parameters_ && round == Round{0}; }
  static bool Has(const std::vector<MemberId>& set, MemberId id) {
    return std::find(set.begin(), set.end(), id) != set.end();
  }
  static bool NobodyHasData(const OpenRound& open) {
    return std::none_of(open.epoch.members.begin(), open.epoch.members.end(),
                        [&open](const Member& member) {
                          return open.roster.Find(member.id)->HasData(open.group, open.round);
                        });
  }
  const std::vector<MemberId>* Find(Round round) const {
    const auto set = sets_.find(round);
    return set == sets_.end() ? nullptr : &set->second;
  }

  const Quorum quorum_;
  const bool holds_parameters_;
  std::map<Round, std::vector<MemberId>> sets_;
};

}  // namespace

std::vector<MemberId> OpenRound::Awaited() const {
  std::vector<MemberId> awaited;
  for (const Member& member : epoch.members) {
    if (seats.Has(member.id)) continue;
    if (roster.Find(member.id)->HasData(group, round)) awaited.push_back(member.id);
  }
  return awaited;
}

bool OpenRound::AnyData() const {
  return std::any_of(epoch.members.begin(), epoch.members.end(), [this](const Member& member) {
    return seats.Has(member.id) && !roster.Find(member.id)->HasEnded(group, round);
  });
}

std::unique_ptr<RoundPolicy> MakeRoundPolicy(const GroupSpec& spec) {
  if (std::holds_alternative<First>(spec.policy)) return std::make_unique<FirstRounds>();
  if (const auto* quorum = std::get_if<Quorum>(&spec.policy)) {
    return std::make_unique<QuorumRounds>(*quorum, std::holds_alternative<Optimizer>(spec.rule));
  }
  return std::make_unique<SyncRounds>();
}

}  // namespace syncgrads::server
