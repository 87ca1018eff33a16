// ChunkRounds: contributions with NaNs and infinities, which a round that closes has
// come across.

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/chunk_rounds.h"
#include "server/core/non_finite.h"

namespace syncgrads::server {

void ChunkRounds::SetAsideNonFiniteLocked(const Epoch& epoch, Outbox& outbox) {
  bool any = false;
  for (const Member& member : epoch.members) {
    const auto seat = seats_.find(member.id);
    if (seat == seats_.end() || seat->second.contribution.skip) continue;
    if (!policy_->Counts(open_, member.id)) continue;
    Taken& taken = seat->second;
    const std::vector<NonFinite> found = FindNonFinite(chunk_, taken.contribution);
    if (found.empty()) continue;
    any = true;
    const std::string first = ToString(plan_, chunk_, open_, member.name, found[0]);
    const bool refused = plan_.spec.non_finite == OnBad::kReject;
    alerts_->Add(absl::StrCat(first, refused ? ": it is refused" : ": it is left out"));
    if (refused) {
      outbox.answers.push_back({std::move(taken.sink),
                                answer_.Refusal(open_, absl::InvalidArgumentError(first)), false});
      seats_.erase(seat);
      continue;
    }
    for (const NonFinite& one : found) taken.left_out.push_back(one.span);
    taken.contribution = WithoutSpans(chunk_, taken.contribution, taken.left_out);
  }
  if (any) return;
  alerts_->Add(absl::StrCat("the average of chunk ", ToNumber(id_), " (from tensor \"",
                            plan_.layout.tensor(chunk_.spans.front().tensor).name, "\" to \"",
                            plan_.layout.tensor(chunk_.spans.back().tensor).name, "\") in step ",
                            ToNumber(open_), " of group \"", plan_.spec.name,
                            "\" is not finite, though every contribution is: they are too large"));
}

void ChunkRounds::AnswerLeftOutLocked(const RoundRecord& record, std::shared_ptr<const Slot> slot,
                                      Outbox& outbox) {
  for (auto seat = seats_.begin(); seat != seats_.end();) {
    Taken& taken = seat->second;
    if (taken.left_out.empty()) {
      ++seat;
      continue;
    }
    outbox.answers.push_back(
        {std::move(taken.sink),
         answer_.Result(record, slot, record.round, {}, std::move(taken.left_out)),
         !taken.without_result});
    seat = seats_.erase(seat);
  }
}

}  // namespace syncgrads::server
