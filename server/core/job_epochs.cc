// CoordinatedJob: how its epochs begin.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/coordinated_job.h"

namespace syncgrads::server {
namespace {

// More than begin in the time for which a member can be out of reach.
constexpr size_t kEarlierEpochs = 64;

}  // namespace

std::string CoordinatedJob::WaitingFor() const {
  if (!with_.log.complete()) {
    return absl::StrCat("server ", with_.log.Absent(), " has not started yet");
  }
  const std::string names = absl::StrJoin(members_, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "\"", entry.second.member.name, "\"");
  });
  return absl::StrCat(members_.size(), " of ", terms_.world_size, " workers have joined: ", names);
}

std::vector<const CoordinatedJob::MemberState*> CoordinatedJob::Ranked() const {
  std::vector<const MemberState*> ranked;
  for (const auto& [id, member] : members_) {
    if (!member.gone) ranked.push_back(&member);
  }
  std::sort(ranked.begin(), ranked.end(), [](const MemberState* a, const MemberState* b) {
    const uint32_t last = ~uint32_t{0};
    const uint32_t rank_a = a->asked_rank.value_or(last), rank_b = b->asked_rank.value_or(last);
    return rank_a != rank_b ? rank_a < rank_b : a->member.name < b->member.name;
  });
  return ranked;
}

void CoordinatedJob::TryStart() {
  if (has_begun()) return;
  if (!with_.log.complete() || members_.size() < terms_.world_size) {
    const Waiting waiting{WaitingFor()};
    for (const auto& [id, member] : members_) Send(member, waiting);
    return;
  }
  Epoch epoch;
  epoch.number = 1;
  for (const MemberState* member : Ranked()) epoch.members.push_back(member->member);
  BeginEpoch(std::move(epoch));
}

bool CoordinatedJob::IsOver() const {
  bool any = false;
  for (const MemberState* member : Ranked()) {
    if (IsNewcomer(*member)) continue;
    if (!member->ended) return false;
    any = true;
  }
  return any;
}

std::string CoordinatedJob::WhyNoNewcomers() const {
  for (const MemberState* member : Ranked()) {
    if (IsNewcomer(*member) || member->ready) continue;
    return absl::StrCat("worker \"", member->member.name,
                        member->behind ? "\" is not up to date yet"
                                       : "\" has not said that it is ready for others to join");
  }
  return IsOver() ? "its data has come to an end" : "";
}

std::string CoordinatedJob::WhatIsMissing(size_t members) const {
  if (members >= terms_.min_workers || IsOver()) return "";
  return absl::StrCat(Quoted(), " waits for workers: ", members, " of at least ",
                      terms_.min_workers, " are there");
}

void CoordinatedJob::TryGrow() {
  if (!has_begun() || closed()) return;
  if (proposal_.has_value()) return FinishProposal();
  const std::vector<const MemberState*> ranked = Ranked();
  const bool any = std::any_of(ranked.begin(), ranked.end(),
                               [this](const MemberState* member) { return IsNewcomer(*member); });
  if (!any) return;
  const std::string why_not = WhyNoNewcomers();
  if (why_not.empty()) return ProposeEpoch();
  for (const MemberState* member : ranked) {
    if (IsNewcomer(*member)) Send(*member, Waiting{absl::StrCat(Quoted(), " runs: ", why_not)});
  }
}

std::vector<const CoordinatedJob::MemberState*> CoordinatedJob::Next() const {
  std::vector<const MemberState*> members = Ranked();
  if (!WhyNoNewcomers().empty()) {
    std::erase_if(members, [this](const MemberState* member) { return IsNewcomer(*member); });
  }
  return members;
}

void CoordinatedJob::ProposeEpoch() {
  // Those who go while an epoch is proposed are left out at its end.
  if (proposal_.has_value()) return FinishProposal();
  std::vector<GroupRound> held;
  const uint64_t sequence =
      Append(EpochProposed{epoch_.number + 1, WhatIsMissing(Next().size())}, &held);
  proposal_.emplace(sequence, with_.log.size());
  proposal_->Answer(ServerIndex{0}, held);
  FinishProposal();
}

void CoordinatedJob::OpenRounds(ServerIndex server, uint64_t sequence,
                                const std::vector<GroupRound>& rounds) {
  if (!proposal_.has_value() || proposal_->sequence() != sequence) return;
  proposal_->Answer(server, rounds);
  FinishProposal();
}

void CoordinatedJob::FinishProposal() {
  if (!proposal_->answered_by_all()) return;
  const std::vector<const MemberState*> members = Next();
  const std::string missing = WhatIsMissing(members.size());
  if (!missing.empty()) {
    if (held_for_ != missing) with_.journal.Warn(missing);
    held_for_ = missing;
    for (const MemberState* member : members) Send(*member, Waiting{missing});
    return;
  }
  held_for_.clear();
  std::vector<GroupRound> first_rounds = proposal_->FirstRounds();
  PassDecided(first_rounds);
  proposal_.reset();
  if (is_elastic()) {
    Handover handover;
    if (!PlanHandover(members, first_rounds, handover)) {
      for (const MemberState* member : Ranked()) {
        Drop(members_.at(member->member.id),
             absl::AbortedError("no worker is left that has the job's state"));
      }
      return;
    }
    BeginEpochOf(members, first_rounds, std::move(handover));
  } else {
    BeginEpochOf(members, first_rounds, Handover());
  }
  for (const RegistrationRequest& late : std::exchange(postponed_, {})) {
    Register(late.member, late.request, late.spec, late.link_rate);
  }
  TryGrow();
}

bool CoordinatedJob::PlanHandover(const std::vector<const MemberState*>& members,
                                  const std::vector<GroupRound>& first_rounds, Handover& handover) {
  std::optional<MemberId> donor;
  for (const MemberState* listed : members) {
    MemberState& member = members_.at(listed->member.id);
    if (IsNewcomer(member)) {
      member.behind = true;
      newcomers_first_rounds_ = first_rounds;
      newcomers_since_ = with_.clock.Now();
    }
    if (member.behind) {
      handover.to.push_back(member.member.id);
    } else if (!donor.has_value()) {
      donor = member.member.id;
    }
  }
  if (!donor.has_value()) return false;
  handover.donor = *donor;
  handover.rounds = newcomers_first_rounds_;
  return true;
}

void CoordinatedJob::BeginEpochOf(const std::vector<const MemberState*>& members,
                                  std::vector<GroupRound> first_rounds, Handover handover) {
  Epoch epoch;
  epoch.number = epoch_.number + 1;
  for (const MemberState* member : members) epoch.members.push_back(member->member);
  epoch.first_rounds = std::move(first_rounds);
  if (!handover.to.empty()) epoch.handover = std::move(handover);
  BeginEpoch(std::move(epoch));
}

void CoordinatedJob::SetEpoch(Epoch epoch) {
  if (has_begun()) earlier_epochs_.push_back(std::move(epoch_));
  if (earlier_epochs_.size() > kEarlierEpochs) earlier_epochs_.pop_front();
  epoch_ = std::move(epoch);
}

void CoordinatedJob::BeginEpoch(Epoch epoch) {
  with_.journal.Note(absl::StrCat(
      Quoted(), ": epoch ", epoch.number, " of ", epoch.members.size(),
      " workers: ", absl::StrJoin(epoch.members, ", ", [](std::string* out, const Member& member) {
        *out += member.name;
      })));
  SetEpoch(std::move(epoch));
  epoch_told_ = false;
  epoch_sequence_ = Append(epoch_);
  for (const Member& member : epoch_.members) TellWhenApplied(epoch_sequence_, member.id, epoch_);
  // Whoever has gone is nobody's affair any more, once that has been said.
  std::erase_if(members_, [this](const auto& entry) {
    const MemberState& member = entry.second;
    return member.gone && member.link == nullptr && !member.awaits_farewell &&
           !epoch_.Has(entry.first);
  });
}

}  // namespace syncgrads::server
