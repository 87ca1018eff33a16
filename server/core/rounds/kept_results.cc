#include "server/core/rounds/kept_results.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace syncgrads::server {

KeptResults::KeptResults(const GroupPlan& plan, const ChunkAnswers& answer,
                         const RoundPolicy& policy)
    : plan_(plan), answer_(answer), limit_(policy.kept()), leaves_behind_(policy.leaves_behind()) {}

void KeptResults::Restore(RoundRecord record, std::shared_ptr<const Slot> slot) {
  kept_.push_back({answer_.Result(record, std::move(slot), record.round), std::move(record)});
}

void KeptResults::MakeRoom() {
  while (kept_.size() > std::max<size_t>(1, limit_ - 1)) kept_.pop_back();
}

void KeptResults::Add(std::shared_ptr<const RoundResult> result, RoundRecord record,
                      const Roster& roster) {
  const auto follows = [&](const Member& member) {
    return roster.Find(member.id)->Follows(plan_.id, record.round);
  };
  const std::vector<Member>& members = roster.EpochOf(plan_.id, record.round)->members;
  // If the policy waits for all members with data, each of them has a seat in this round, and so
  // has received the result of the round before. Only a follower may still request that one.
  const bool requested = leaves_behind_ || std::any_of(members.begin(), members.end(), follows);
  if (!requested || limit_ == 1) kept_.clear();
  kept_.push_front({std::move(result), std::move(record)});
}

std::shared_ptr<const RoundResult> KeptResults::Find(Round round) const {
  for (const Kept& kept : kept_) {
    if (kept.record.round == round) return kept.result;
  }
  return nullptr;
}

std::optional<Round> KeptResults::newest_round() const {
  if (kept_.empty()) return std::nullopt;
  return kept_.front().record.round;
}

const Slot* KeptResults::newest_slot() const {
  return kept_.empty() ? nullptr : kept_.front().result->slot.get();
}

void KeptResults::Request(MemberId member, Round round) {
  Round& requested = requested_[member];
  requested = std::max(requested, round);
}

void KeptResults::Answer(const PushHeader& header, Round open, std::shared_ptr<AnswerSink> sink,
                         AnswerOutbox& outbox) const {
  for (const Kept& kept : kept_) {
    if (kept.record.round != header.round && limit_ > 1) continue;
    const Round newest = kept_.front().record.round;
    outbox.Add(std::move(sink),
               leaves_behind_ && newest != header.round
                   ? answer_.Result(kept.record, kept.result->slot, header.round, newest)
                   : kept.result,
               !header.without_result);
    return;
  }
  outbox.Add(std::move(sink),
             answer_.Refusal(header.round, absl::FailedPreconditionError(absl::StrCat(
                                               "the result of round ", ToNumber(header.round),
                                               " of chunk ", ToNumber(header.chunk), " of group \"",
                                               plan_.spec.name, "\" is no longer kept; round ",
                                               ToNumber(open), " is open: rejoin"))));
}

std::vector<MemberId> KeptResults::Behind(Round open, const Roster& roster) const {
  std::vector<MemberId> behind;
  if (kept_.empty() || limit_ < 2 || ToNumber(open) + 1 < limit_) return behind;
  // The oldest round that will still be kept when the open round has closed.
  const Round oldest{ToNumber(open) + 1 - limit_};
  for (const Member& member : roster.EpochOf(plan_.id, open)->members) {
    if (!roster.Find(member.id)->Follows(plan_.id, oldest)) continue;
    const auto requested = requested_.find(member.id);
    if (requested == requested_.end() || requested->second < oldest) behind.push_back(member.id);
  }
  return behind;
}

void KeptResults::Forget(absl::FunctionRef<bool(MemberId)> has_gone) {
  std::erase_if(requested_, [has_gone](const auto& member) { return has_gone(member.first); });
}

}  // namespace syncgrads::server
