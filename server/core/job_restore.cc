// CoordinatedJob: what is stored of it, and how it comes back after a crash.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/coordinated_job.h"

namespace syncgrads::server {

absl::Status CoordinatedJob::Keep(const Stored& record) const {
  return with_.store == nullptr ? absl::OkStatus() : with_.store->Append(record);
}

void CoordinatedJob::Withdraw(MemberId id) {
  members_.erase(id);
  // One that a crash brings back is dropped again when its lease ends.
  const absl::Status kept = Keep(MemberWithdrawn{name_, generation_, id});
  if (!kept.ok()) {
    with_.journal.Warn(absl::StrCat(Quoted(), ": cannot store that member ", ToNumber(id),
                                    " has gone: ", kept.message()));
  }
}

void CoordinatedJob::Restore(const MemberAdmitted& admitted) {
  MemberState& member = members_[admitted.member];
  member.member = {admitted.member, admitted.name, admitted.introduction.incarnation};
  member.asked_rank = admitted.introduction.rank;
  member.host = admitted.introduction.host;
  member.shares_memory = admitted.introduction.shares_memory;
  // Nobody could renew its lease while there was no coordinator.
  member.last_heard = with_.clock.Now();
  next_member_ = std::max(next_member_, ToNumber(admitted.member) + 1);
}

void CoordinatedJob::Restore(const MemberWithdrawn& withdrawn) { members_.erase(withdrawn.member); }

void CoordinatedJob::Restore(const MemberReady& ready) {
  const auto member = members_.find(ready.member);
  if (member == members_.end()) return;
  if (!state_group_.has_value()) state_group_ = ready.group;
  member->second.ready = true;
  member->second.behind = false;
}

void CoordinatedJob::Restore(const PlanChange& change) {
  if (const auto* plan = std::get_if<std::shared_ptr<const GroupPlan>>(&change.kind)) {
    groups_.Add({*plan, "a worker before the restart", change.sequence});
    BeginTally(*plan);
  } else if (const auto* quorum = std::get_if<QuorumSet>(&change.kind)) {
    const auto tally = tallies_.find(quorum->group);
    if (tally != tallies_.end()) tally->second.Decided(quorum->round);
  } else if (const auto* norms = std::get_if<StepNorms>(&change.kind)) {
    const auto tally = norm_tallies_.find(norms->group);
    if (tally != norm_tallies_.end()) tally->second.Decided(*norms);
  } else if (std::holds_alternative<EpochProposed>(change.kind)) {
    proposal_.emplace(change.sequence, with_.log.size());
  } else if (const auto* epoch = std::get_if<Epoch>(&change.kind)) {
    SetEpoch(*epoch);
    epoch_sequence_ = change.sequence;
    proposal_.reset();
    if (!epoch->handover.has_value()) return;
    newcomers_first_rounds_ = epoch->handover->rounds;
    newcomers_since_ = with_.clock.Now();
    for (MemberId id : epoch->handover->to) {
      const auto member = members_.find(id);
      if (member != members_.end()) member->second.behind = true;
    }
  } else if (const auto* ended = std::get_if<MemberEnded>(&change.kind)) {
    const auto member = members_.find(ended->member);
    if (member != members_.end() && ended->group == state_group_) member->second.ended = true;
  } else if (const auto* gone = std::get_if<MemberGone>(&change.kind)) {
    const auto member = members_.find(gone->member);
    if (member == members_.end()) return;
    member->second.gone = true;
    // Whether it has been told is not stored: it may ask.
    member->second.awaits_farewell = gone->in_order;
  } else if (std::holds_alternative<JobClosed>(change.kind)) {
    for (auto& [id, member] : members_) member.gone = true;
    proposal_.reset();
    closed_by_ = change.sequence;
    closed_at_ = with_.clock.Now();
  }
}

void CoordinatedJob::FinishRestore(const std::vector<HeldRounds>& held) {
  if (closed()) return;
  if (has_begun()) {
    for (const Member& member : epoch_.members) {
      announcements_.Add({epoch_sequence_, member.id, epoch_});
    }
  }
  if (proposal_.has_value()) {
    for (const HeldRounds& rounds : held) {
      if (rounds.sequence != proposal_->sequence()) continue;
      proposal_->Answer(ServerIndex{0}, rounds.rounds);
    }
    FinishProposal();
  } else if (std::any_of(epoch_.members.begin(), epoch_.members.end(), [this](const Member& one) {
               const auto member = members_.find(one.id);
               if (member == members_.end() || !member->second.gone) return false;
               // A job that is not elastic keeps the epoch of who has left in order.
               return !member->second.awaits_farewell || (is_elastic() && !IsOver());
             })) {
    // It died between the end of a member and proposing to go on without it.
    if (!AllGone()) ProposeEpoch();
  }
  TryGrow();
  TellApplied();
}

bool CoordinatedJob::IsLeaving(const Introduction& introduction) const {
  return std::any_of(members_.begin(), members_.end(), [&introduction](const auto& entry) {
    const MemberState& member = entry.second;
    return member.awaits_farewell && member.member.incarnation == introduction.incarnation;
  });
}

}  // namespace syncgrads::server
