#include "server/core/chunk_rounds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "server/core/answer_sinks.h"

namespace syncgrads::server {
namespace {

SlotShape ShapeOf(const Chunk& chunk, const UpdateRule& rule, size_t kept) {
  SlotShape shape{.value_bytes = chunk.bytes(), .kept = kept};
  if (const auto* optimizer = std::get_if<Optimizer>(&rule)) {
    shape.optimizer_slots = SlotCount(*optimizer);
    shape.spans = chunk.spans.size();
  }
  if (!chunk.compression.result.is_raw()) shape.residual_bytes = chunk.bytes();
  return shape;
}

}  // namespace

ChunkRounds::ChunkRounds(const GroupPlan& plan, ChunkId chunk, Generation generation,
                         std::shared_ptr<const Roster> roster, const Clock& clock,
                         std::shared_ptr<SlotSource> source, size_t position,
                         std::shared_ptr<GradientAlerts> alerts, SeatListener* listener,
                         std::function<void(ReducedChunk)> tell_reduced)
    : plan_(plan),
      id_(chunk),
      chunk_(plan.layout.chunk(chunk)),
      generation_(generation),
      answer_(generation, plan.id, chunk),
      clock_(clock),
      alerts_(std::move(alerts)),
      listener_(listener),
      tell_reduced_(std::move(tell_reduced)),
      policy_(MakeRoundPolicy(plan.spec)),
      pool_(ShapeOf(chunk_, plan.spec.rule, policy_->kept()), std::move(source), position),
      roster_(std::move(roster)),
      open_(FirstRound(plan.spec.rule)) {
  MutexLock lock(mutex_);
  for (SlotPool::Kept& kept : pool_.TakeKept()) {
    kept_.push_back({answer_.Result(kept.record, std::move(kept.slot), kept.record.round),
                     std::move(kept.record)});
  }
  if (!kept_.empty()) open_ = Next(kept_.front().record.round);
}

bool ChunkRounds::Seat(const PushHeader& header, Payload payload,
                       std::shared_ptr<AnswerSink> sink) {
  Outbox outbox;
  Pushed pushed;
  bool can_close = false;
  {
    MutexLock lock(mutex_);
    pushed = PushLocked(header, std::move(payload), std::move(sink), outbox);
    // A follower that was waited for may have caught up.
    can_close = pushed != Pushed::kAnswered && CanCloseLocked();
  }
  Send(std::move(outbox));
  if (pushed == Pushed::kSeated && listener_ != nullptr) {
    listener_->Seated(header.round, header.member);
  }
  return can_close;
}

void ChunkRounds::Close() {
  Outbox outbox;
  {
    MutexLock lock(mutex_);
    TryCloseLocked(outbox);
  }
  Send(std::move(outbox));
}

bool ChunkRounds::Fix(Round round, const std::vector<MemberId>& members) {
  MutexLock lock(mutex_);
  if (round < open_) return false;
  policy_->Fix(round, members);
  return CanCloseLocked();
}

void ChunkRounds::Send(Outbox outbox) const {
  for (Answer& answer : outbox.answers)
    answer.sink->Send(std::move(answer.result), answer.with_payload);
  if (tell_reduced_ == nullptr) return;
  for (ReducedChunk& reduced : outbox.reduced) tell_reduced_(std::move(reduced));
}

void ChunkRounds::SetRoster(std::shared_ptr<const Roster> roster) {
  Outbox outbox;
  {
    MutexLock lock(mutex_);
    roster_ = std::move(roster);
    UnseatOutsidersLocked(outbox);
    TryCloseLocked(outbox);
  }
  Send(std::move(outbox));
}

Round ChunkRounds::Hold() {
  MutexLock lock(mutex_);
  held_from_ = seats_.empty() && !reduced_.has_value() ? open_ : Next(open_);
  return *held_from_;
}

void ChunkRounds::Release() {
  Outbox outbox;
  {
    MutexLock lock(mutex_);
    held_from_.reset();
    TryCloseLocked(outbox);
  }
  Send(std::move(outbox));
}

std::optional<ChunkWait> ChunkRounds::Explain() const {
  MutexLock lock(mutex_);
  if (reduced_.has_value()) return ChunkWait{open_, open_since_, {}, /*reduced=*/true};
  if (seats_.empty()) return std::nullopt;
  return ChunkWait{open_, open_since_, MissingLocked()};
}

std::shared_ptr<const RoundResult> ChunkRounds::Kept(Round round) const {
  MutexLock lock(mutex_);
  for (const KeptRound& kept : kept_) {
    if (kept.record.round == round) return kept.result;
  }
  return nullptr;
}

Round ChunkRounds::open_round() const {
  MutexLock lock(mutex_);
  return open_;
}

uint64_t ChunkRounds::late_contributions() const {
  MutexLock lock(mutex_);
  return late_contributions_;
}

ChunkRounds::Pushed ChunkRounds::PushLocked(const PushHeader& header, Payload payload,
                                            std::shared_ptr<AnswerSink> sink, Outbox& outbox) {
  const auto refuse = [&](const absl::Status& error) {
    outbox.answers.push_back(
        {std::move(sink), answer_.Refusal(header.round, error, header.epoch), false});
    return Pushed::kAnswered;
  };
  const Roster::Entry* sender = roster_->Find(header.member);
  if (absl::Status status = CheckSender(*roster_, plan_.id, header); !status.ok()) {
    return refuse(status);
  }
  if (header.round > open_ && policy_->gives_up_for_later() &&
      FindRound(roster_->newest_epoch()->first_rounds, plan_.id) == header.round) {
    SkipToLocked(header.round, outbox);
  }
  if (header.round > open_) {
    if (IsAheadLocked(header.member)) {
      return refuse(absl::UnavailableError(absl::StrCat(
          "round ", ToNumber(header.round), " of chunk ", ToNumber(id_), " of group \"",
          plan_.spec.name, "\" waits for round ", ToNumber(open_), " of the epoch before")));
    }
    return refuse(absl::FailedPreconditionError(
        absl::StrCat("round ", ToNumber(header.round), " of chunk ", ToNumber(id_), " of group \"",
                     plan_.spec.name, "\" is not open yet; round ", ToNumber(open_), " is")));
  }
  Round& asked = asked_[header.member];
  asked = std::max(asked, header.round);
  if (header.round < open_) {
    AnswerClosedLocked(header, std::move(sink), outbox);
    return Pushed::kAsked;
  }
  if (absl::Status status = CheckSeatLocked(header.member, header.epoch, header.skip);
      !status.ok()) {
    return refuse(status);
  }
  if (!header.skip && sender->HasEnded(plan_.id, open_)) {
    return refuse(absl::FailedPreconditionError(absl::StrCat(
        "worker \"", sender->member.name, "\" contributes to round ", ToNumber(header.round),
        " of group \"", plan_.spec.name, "\", but ended its data before it")));
  }
  if (seats_.empty()) open_since_ = clock_.Now();
  const auto [entry, taken_now] = seats_.try_emplace(header.member);
  Taken& seat = entry->second;
  seat.sink = AlsoTo(std::move(seat.sink), std::move(sink));
  seat.without_result = header.without_result;
  if (!taken_now) return Pushed::kAnswered;  // counted already
  seat.made_in = header.epoch;
  seat.contribution = {header.skip, header.weight == 0 ? 1.0 : header.weight, header.absent_spans,
                       std::move(payload), header.codec};
  return Pushed::kSeated;
}

absl::Status ChunkRounds::CheckSeatLocked(MemberId member, uint64_t made_in, bool skip) const {
  const Epoch& epoch = *roster_->EpochOf(plan_.id, open_);
  if (epoch.Has(member)) {
    // A skip is nobody's, and the first parameters are the same in any epoch.
    const bool depends = plan_.spec.one_epoch && !skip && open_ != Round{0};
    if (!depends || made_in == epoch.number) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("a contribution to round ", ToNumber(open_),
                                           " of group \"", plan_.spec.name, "\" was made in epoch ",
                                           made_in, ", and the round belongs to epoch ",
                                           epoch.number, ": make it again"));
  }
  if (IsAheadLocked(member)) {
    // Its result is what a newcomer may ask for, once there is one.
    return absl::UnavailableError(absl::StrCat("round ", ToNumber(open_), " of chunk ",
                                               ToNumber(id_), " of group \"", plan_.spec.name,
                                               "\" has not closed yet"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "member ", ToNumber(member), " (\"", roster_->Find(member)->member.name,
      "\") is not in epoch ", epoch.number, ", which round ", ToNumber(open_), " belongs to"));
}

bool ChunkRounds::IsAheadLocked(MemberId member) const {
  const Epoch* epoch = roster_->EpochOf(plan_.id, open_);
  return !epoch->Has(member) && roster_->newest_epoch()->number > epoch->number &&
         roster_->newest_epoch()->Has(member);
}

void ChunkRounds::SkipToLocked(Round round, Outbox& outbox) {
  AnswerSeatsLocked(
      answer_.Refusal(open_, absl::AbortedError(absl::StrCat(
                                 "round ", ToNumber(open_), " of group \"", plan_.spec.name,
                                 "\" was given up for round ", ToNumber(round)))),
      outbox);
  open_ = round;
}

void ChunkRounds::UnseatOutsidersLocked(Outbox& outbox) {
  if (reduced_.has_value()) return;  // it belongs to the epoch that it was reduced in
  for (auto seat = seats_.begin(); seat != seats_.end();) {
    const absl::Status status =
        CheckSeatLocked(seat->first, seat->second.made_in, seat->second.contribution.skip);
    if (status.ok()) {
      ++seat;
      continue;
    }
    outbox.answers.push_back({std::move(seat->second.sink),
                              answer_.Refusal(open_, status, seat->second.made_in), false});
    seat = seats_.erase(seat);
  }
}

void ChunkRounds::AnswerClosedLocked(const PushHeader& header, std::shared_ptr<AnswerSink> sink,
                                     Outbox& outbox) {
  if (!header.skip) NoteLateLocked(header.member, header.round);
  for (const KeptRound& kept : kept_) {
    const Round round = kept.record.round;
    if (round != header.round && !policy_->answers_with_newest()) continue;
    const Round newest = kept_.front().record.round;
    outbox.answers.push_back(
        {std::move(sink),
         policy_->leaves_behind() && newest != header.round
             ? answer_.Result(kept.record, kept.result->slot, header.round, newest)
             : kept.result,
         !header.without_result});
    return;
  }
  outbox.answers.push_back(
      {std::move(sink),
       answer_.Refusal(header.round,
                       absl::FailedPreconditionError(absl::StrCat(
                           "the result of round ", ToNumber(header.round), " of chunk ",
                           ToNumber(id_), " of group \"", plan_.spec.name,
                           "\" is no longer kept; round ", ToNumber(open_), " is open: rejoin"))),
       false});
}

void ChunkRounds::NoteLateLocked(MemberId member, Round round) {
  Round& settled = settled_[member];
  if (!policy_->leaves_behind() || settled >= round) return;
  settled = round;
  ++late_contributions_;
}

}  // namespace syncgrads::server
