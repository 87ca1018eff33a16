#include "server/core/rounds/round_seats.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/planted_bug.h"
#include "server/core/rounds/answer_sinks.h"
#include "server/core/rounds/non_finite.h"

namespace syncgrads::server {

RoundSeats::RoundSeats(const GroupPlan& plan, ChunkId chunk, const ChunkAnswers& answer,
                       const Clock& clock)
    : plan_(plan), id_(chunk), chunk_(plan.layout.chunk(chunk)), answer_(answer), clock_(clock) {}

bool RoundSeats::Take(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink) {
  if (seats_.empty()) since_ = clock_.Now();
  const auto [entry, taken_now] = seats_.try_emplace(header.member);
  Seat& seat = entry->second;
  seat.sink = AlsoTo(std::move(seat.sink), std::move(sink));
  seat.without_result = header.without_result;
  if (!taken_now) {
    if (IsPlanted(PlantedBug::kDuplicateCounted)) seat.contribution.weight += 1;
    return false;
  }
  seat.made_in = header.epoch;
  seat.contribution = {header.skip, header.weight == 0 ? 1.0 : header.weight, header.absent_spans,
                       std::move(payload), header.codec};
  return true;
}

bool RoundSeats::AnyValues() const {
  return std::any_of(seats_.begin(), seats_.end(),
                     [](const auto& seat) { return !seat.second.contribution.skip; });
}

void RoundSeats::AnswerAll(std::shared_ptr<const RoundResult> result, AnswerOutbox& outbox) {
  for (auto& [member, seat] : seats_) {
    outbox.Add(std::move(seat.sink), result, !seat.without_result);
  }
  seats_.clear();
}

void RoundSeats::AnswerLeftOut(const RoundRecord& record, std::shared_ptr<const Slot> slot,
                               AnswerOutbox& outbox) {
  for (auto entry = seats_.begin(); entry != seats_.end();) {
    Seat& seat = entry->second;
    if (seat.left_out.empty()) {
      ++entry;
      continue;
    }
    outbox.Add(std::move(seat.sink),
               answer_.Result(record, slot, record.round, {}, std::move(seat.left_out)),
               !seat.without_result);
    entry = seats_.erase(entry);
  }
}

void RoundSeats::Check(Round round, absl::FunctionRef<absl::Status(MemberId, const Seat&)> check,
                       AnswerOutbox& outbox) {
  for (auto entry = seats_.begin(); entry != seats_.end();) {
    Seat& seat = entry->second;
    const absl::Status status = check(entry->first, seat);
    if (status.ok()) {
      ++entry;
      continue;
    }
    outbox.Add(std::move(seat.sink), answer_.Refusal(round, status, seat.made_in));
    entry = seats_.erase(entry);
  }
}

std::vector<MemberId> RoundSeats::SetAsideNonFinite(Round round, const Epoch& epoch,
                                                    absl::Span<const Seated> contributions,
                                                    GradientAlerts& alerts, AnswerOutbox& outbox) {
  std::vector<MemberId> senders;
  for (const Seated& seated : contributions) {
    if (seated.contribution->skip) continue;
    const std::vector<NonFinite> found = FindNonFinite(chunk_, *seated.contribution);
    if (found.empty()) continue;
    const Member& member = epoch.members[seated.rank];
    senders.push_back(member.id);
    const std::string first = ToString(plan_, chunk_, round, member.name, found[0]);
    const bool refused = plan_.spec.non_finite == OnBad::kReject;
    alerts.AddNonFinite(member.name,
                        absl::StrCat(first, refused ? ": it is refused" : ": it is left out"));
    const auto entry = seats_.find(member.id);
    Seat& seat = entry->second;
    if (refused) {
      outbox.Add(std::move(seat.sink), answer_.Refusal(round, absl::InvalidArgumentError(first)));
      seats_.erase(entry);
      continue;
    }
    for (const NonFinite& one : found) seat.left_out.push_back(one.span);
    seat.contribution = WithoutSpans(chunk_, seat.contribution, seat.left_out);
  }
  if (!senders.empty()) return senders;
  alerts.Add(absl::StrCat("the average of chunk ", ToNumber(id_), " (from tensor \"",
                          plan_.layout.tensor(chunk_.spans.front().tensor).name, "\" to \"",
                          plan_.layout.tensor(chunk_.spans.back().tensor).name, "\") in step ",
                          ToNumber(round), " of group \"", plan_.spec.name,
                          "\" is not finite, though every contribution is: they are too large"));
  return senders;
}

}  // namespace syncgrads::server
