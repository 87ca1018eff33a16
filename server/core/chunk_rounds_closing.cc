// ChunkRounds: what a round waits for, and how it closes.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/chunk_rounds.h"
#include "server/core/encoded_closing.h"
#include "server/core/norm_closing.h"
#include "server/state/slot_record.h"

namespace syncgrads::server {

template <typename Ask>
auto ChunkRounds::AskPolicyLocked(Ask ask) const {
  const bool any_values = std::any_of(seats_.begin(), seats_.end(), [](const auto& seat) {
    return !seat.second.contribution.skip;
  });
  const auto has_seat = [this](MemberId member)
                            ABSL_NO_THREAD_SAFETY_ANALYSIS { return seats_.contains(member); };
  return ask(OpenRound{plan_.id, open_, *roster_->EpochOf(plan_.id, open_), *roster_, has_seat,
                       any_values});
}

std::vector<MemberId> ChunkRounds::BehindLocked() const {
  std::vector<MemberId> behind;
  const uint64_t kept = policy_->kept();
  if (kept_.empty() || kept < 2 || ToNumber(open_) + 1 < kept) return behind;
  // The oldest that is still kept when the open round has closed.
  const Round oldest{ToNumber(open_) + 1 - kept};
  for (const Member& member : roster_->EpochOf(plan_.id, open_)->members) {
    if (!roster_->Find(member.id)->Follows(plan_.id, oldest)) continue;
    const auto asked = asked_.find(member.id);
    if (asked == asked_.end() || asked->second < oldest) behind.push_back(member.id);
  }
  return behind;
}

std::vector<MemberId> ChunkRounds::MissingLocked() const {
  if (roster_->EpochOf(plan_.id, open_) == nullptr) return {};
  std::vector<MemberId> missing =
      AskPolicyLocked([this](const OpenRound& open) { return policy_->Missing(open); });
  for (MemberId member : BehindLocked()) {
    if (std::find(missing.begin(), missing.end(), member) == missing.end()) {
      missing.push_back(member);
    }
  }
  return missing;
}

bool ChunkRounds::AnyDataLaterLocked() const {
  const Epoch& newest = *roster_->newest_epoch();
  if (newest.number == roster_->EpochOf(plan_.id, open_)->number) return false;
  return std::any_of(newest.members.begin(), newest.members.end(), [this](const Member& member) {
    const Roster::Entry& entry = *roster_->Find(member.id);
    return !entry.gone && !entry.ended.contains(plan_.id);
  });
}

bool ChunkRounds::AnybodyFollowsLocked(const Epoch& epoch) const {
  return std::any_of(epoch.members.begin(), epoch.members.end(), [this](const Member& member) {
    return roster_->Find(member.id)->Follows(plan_.id, open_);
  });
}

bool ChunkRounds::CanCloseLocked() const {
  if (reduced_.has_value()) return HasNormsLocked();
  if (seats_.empty()) return false;
  if (held_from_.has_value() && open_ >= *held_from_) return false;
  if (!AskPolicyLocked([this](const OpenRound& open) { return policy_->MayClose(open); })) {
    return false;
  }
  return BehindLocked().empty();
}

void ChunkRounds::TryCloseLocked(Outbox& outbox) {
  if (!CanCloseLocked()) return;
  if (reduced_.has_value()) return UseNormsLocked(outbox);
  const Epoch& epoch = *roster_->EpochOf(plan_.id, open_);
  const bool exists =
      AskPolicyLocked([this](const OpenRound& open) { return policy_->HasContributors(open); });
  if (!exists && !AnyDataLaterLocked()) {
    AnswerSeatsLocked(
        answer_.Refusal(open_, absl::OutOfRangeError(absl::StrCat(
                                   "group \"", plan_.spec.name, "\" has no round ", ToNumber(open_),
                                   ": every member has ended or gone"))),
        outbox);
    return;
  }
  // Nobody can still ask for the oldest, and its slot is the one to be written now.
  const size_t limit = policy_->kept();
  while (kept_.size() > std::max<size_t>(1, limit - 1)) kept_.pop_back();
  SettleSeatsLocked();
  absl::StatusOr<Made> made = MakeLocked(epoch, outbox);
  if (!made.ok()) return AnswerSeatsLocked(answer_.Refusal(open_, made.status()), outbox);
  if (WaitsForNormsLocked()) return ReduceLocked(*std::move(made), outbox);
  KeepLocked(*std::move(made), outbox);
}

void ChunkRounds::SettleSeatsLocked() {
  if (!policy_->leaves_behind()) return;
  for (const auto& [member, seat] : seats_) {
    if (!seat.contribution.skip && !policy_->Counts(open_, member)) NoteLateLocked(member, open_);
    settled_[member] = open_;
  }
}

std::vector<Seated> ChunkRounds::SeatedLocked(const Epoch& epoch) const {
  std::vector<Seated> contributions;
  contributions.reserve(seats_.size());
  for (uint32_t rank = 0; rank < epoch.members.size(); ++rank) {
    const auto seat = seats_.find(epoch.members[rank].id);
    if (seat == seats_.end() || !policy_->Counts(open_, seat->first)) continue;
    contributions.push_back({rank, &seat->second.contribution});
  }
  return contributions;
}

absl::StatusOr<Closed> ChunkRounds::ComputeLocked(absl::Span<const Seated> contributions,
                                                  Slot& slot) {
  const bool check_finite = !TakesNonFinite(plan_.spec);
  const UpdateRule& rule = plan_.spec.rule;
  const auto* optimizer = std::get_if<Optimizer>(&rule);
  const Slot* const newest = NewestLocked();
  if (!chunk_.compression.result.is_raw()) {
    return CloseEncodedReduction(chunk_, std::get<Reduction>(rule), contributions, newest, slot,
                                 check_finite);
  }
  if (optimizer == nullptr) {
    return CloseReduction(chunk_, rule, contributions, slot, check_finite);
  }
  if (WaitsForNormsLocked()) {
    return AverageGradients(chunk_, contributions, slot, check_finite);
  }
  if (newest != nullptr) {
    return CloseUpdate(chunk_, *optimizer, contributions, *newest, slot, check_finite);
  }
  Closed closed = CloseInitial(chunk_, contributions, slot);
  if (closed.value_bytes > 0) return closed;
  return absl::FailedPreconditionError(
      absl::StrCat("nobody gave the initial values of chunk ", ToNumber(id_), " of group \"",
                   plan_.spec.name, "\" in round 0: one member must broadcast them"));
}

absl::StatusOr<ChunkRounds::Made> ChunkRounds::MakeLocked(const Epoch& epoch, Outbox& outbox) {
  std::vector<Seated> contributions = SeatedLocked(epoch);
  SYNCGRADS_ASSIGN_OR_RETURN(
      std::shared_ptr<Slot> slot,
      pool_.Acquire(ResultBytes(chunk_, plan_.spec.rule, contributions.size()),
                    contributions.size()));
  SYNCGRADS_ASSIGN_OR_RETURN(Closed closed, ComputeLocked(contributions, *slot));
  if (!closed.finite && !TakesNonFinite(plan_.spec)) {
    SetAsideNonFiniteLocked(epoch, outbox);
    contributions = SeatedLocked(epoch);
    // Made anew, and perhaps in a codec, which has its checksum taken later.
    slot->values_checksum.reset();
    SYNCGRADS_ASSIGN_OR_RETURN(closed, ComputeLocked(contributions, *slot));
  }
  if (!std::holds_alternative<Gather>(plan_.spec.rule)) {
    for (const Seated& seated : contributions) {
      if (!seated.contribution->skip) closed.contributors.push_back(seated.rank);
    }
  }
  return Made{std::move(slot), std::move(closed), epoch.number};
}

void ChunkRounds::KeepLocked(Made made, Outbox& outbox) {
  RoundRecord record{generation_,
                     plan_.id,
                     id_,
                     open_,
                     made.epoch,
                     made.closed.value_bytes,
                     std::move(made.closed.counts),
                     std::move(made.closed.contributors),
                     made.closed.codec};
  // Nothing is sent that a restart could have forgotten.
  if (!made.slot->record.empty()) Publish(record, *made.slot);
  AnswerLeftOutLocked(record, made.slot, outbox);
  std::shared_ptr<const RoundResult> result = answer_.Result(record, std::move(made.slot), open_);
  AnswerSeatsLocked(result, outbox);
  // Where all are waited for, only a follower can have asked for neither this round
  // nor the one before.
  const Epoch& epoch = *roster_->EpochOf(plan_.id, open_);
  if (!policy_->leaves_behind() && !AnybodyFollowsLocked(epoch)) kept_.clear();
  if (policy_->kept() == 1) kept_.clear();
  kept_.push_front({std::move(result), std::move(record)});
  policy_->Closed(open_);
  open_ = Next(open_);
}

const Slot* ChunkRounds::NewestLocked() const {
  return kept_.empty() ? nullptr : kept_.front().result->slot.get();
}

void ChunkRounds::AnswerSeatsLocked(std::shared_ptr<const RoundResult> result, Outbox& outbox) {
  for (auto& [member, seat] : seats_) {
    outbox.answers.push_back({std::move(seat.sink), result, !seat.without_result});
  }
  seats_.clear();
}

}  // namespace syncgrads::server
