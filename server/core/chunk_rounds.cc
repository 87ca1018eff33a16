#include "server/core/chunk_rounds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/optim/update.h"
#include "common/status_macros.h"
#include "server/core/encoded_closing.h"
#include "server/state/slot_record.h"

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
                         std::shared_ptr<GradientAlerts> alerts, SeatListener* listener)
    : plan_(plan),
      id_(chunk),
      chunk_(plan.layout.chunk(chunk)),
      generation_(generation),
      clock_(clock),
      alerts_(std::move(alerts)),
      listener_(listener),
      policy_(MakeRoundPolicy(plan.spec)),
      pool_(ShapeOf(chunk_, plan.spec.rule, policy_->kept()), std::move(source), position),
      roster_(std::move(roster)),
      open_(FirstRound(plan.spec.rule)) {
  MutexLock lock(mutex_);
  for (SlotPool::Kept& kept : pool_.TakeKept()) {
    kept_.push_back(
        {ResultOf(kept.record, std::move(kept.slot), kept.record.round), std::move(kept.record)});
  }
  if (!kept_.empty()) open_ = Next(kept_.front().record.round);
}

bool ChunkRounds::Seat(const PushHeader& header, Payload payload,
                       std::shared_ptr<AnswerSink> sink) {
  Answers answers;
  Pushed pushed;
  bool can_close = false;
  {
    MutexLock lock(mutex_);
    pushed = PushLocked(header, std::move(payload), std::move(sink), answers);
    // A follower that was waited for may have caught up.
    can_close = pushed != Pushed::kAnswered && CanCloseLocked();
  }
  Send(std::move(answers));
  if (pushed == Pushed::kSeated && listener_ != nullptr) {
    listener_->Seated(header.round, header.member);
  }
  return can_close;
}

void ChunkRounds::Close() {
  Answers answers;
  {
    MutexLock lock(mutex_);
    TryCloseLocked(answers);
  }
  Send(std::move(answers));
}

bool ChunkRounds::Fix(Round round, const std::vector<MemberId>& members) {
  MutexLock lock(mutex_);
  if (round < open_) return false;
  policy_->Fix(round, members);
  return CanCloseLocked();
}

void ChunkRounds::Send(Answers answers) {
  for (Answer& answer : answers) answer.sink->Send(std::move(answer.result), answer.with_payload);
}

void ChunkRounds::SetRoster(std::shared_ptr<const Roster> roster) {
  Answers answers;
  {
    MutexLock lock(mutex_);
    roster_ = std::move(roster);
    UnseatOutsidersLocked(answers);
    TryCloseLocked(answers);
  }
  Send(std::move(answers));
}

Round ChunkRounds::Hold() {
  MutexLock lock(mutex_);
  held_from_ = seats_.empty() ? open_ : Next(open_);
  return *held_from_;
}

void ChunkRounds::Release() {
  Answers answers;
  {
    MutexLock lock(mutex_);
    held_from_.reset();
    TryCloseLocked(answers);
  }
  Send(std::move(answers));
}

std::optional<ChunkWait> ChunkRounds::Explain() const {
  MutexLock lock(mutex_);
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
                                            std::shared_ptr<AnswerSink> sink, Answers& answers) {
  const auto refuse = [&](const absl::Status& error) {
    answers.push_back({std::move(sink), Refusal(header.round, error), false});
    return Pushed::kAnswered;
  };
  const Roster::Entry* sender = roster_->Find(header.member);
  if (absl::Status status = CheckSender(*roster_, plan_.id, header); !status.ok()) {
    return refuse(status);
  }
  if (header.round > open_ && policy_->gives_up_for_later() &&
      FindRound(roster_->newest_epoch()->first_rounds, plan_.id) == header.round) {
    SkipToLocked(header.round, answers);
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
    AnswerClosedLocked(header, std::move(sink), answers);
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
  seat.sink = std::move(sink);
  seat.without_result = header.without_result;
  if (!taken_now) return Pushed::kAnswered;  // counted already; only the answer goes elsewhere
  seat.made_in = header.epoch;
  seat.contribution = {header.skip, header.weight == 0 ? 1.0 : header.weight, header.absent_spans,
                       std::move(payload), header.codec};
  return Pushed::kSeated;
}

absl::Status ChunkRounds::CheckSeatLocked(MemberId member, uint64_t made_in, bool skip) const {
  const Epoch& epoch = *roster_->EpochOf(plan_.id, open_);
  if (epoch.Has(member)) {
    if (!plan_.spec.one_epoch || skip || made_in == epoch.number) return absl::OkStatus();
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

void ChunkRounds::SkipToLocked(Round round, Answers& answers) {
  AnswerSeatsLocked(Refusal(open_, absl::AbortedError(absl::StrCat(
                                       "round ", ToNumber(open_), " of group \"", plan_.spec.name,
                                       "\" was given up for round ", ToNumber(round)))),
                    answers);
  open_ = round;
}

void ChunkRounds::UnseatOutsidersLocked(Answers& answers) {
  for (auto seat = seats_.begin(); seat != seats_.end();) {
    const absl::Status status =
        CheckSeatLocked(seat->first, seat->second.made_in, seat->second.contribution.skip);
    if (status.ok()) {
      ++seat;
      continue;
    }
    answers.push_back({std::move(seat->second.sink), Refusal(open_, status), false});
    seat = seats_.erase(seat);
  }
}

void ChunkRounds::AnswerClosedLocked(const PushHeader& header, std::shared_ptr<AnswerSink> sink,
                                     Answers& answers) {
  if (!header.skip) NoteLateLocked(header.member, header.round);
  for (const KeptRound& kept : kept_) {
    const Round round = kept.record.round;
    if (round != header.round && !policy_->answers_with_newest()) continue;
    const Round newest = kept_.front().record.round;
    answers.push_back({std::move(sink),
                       policy_->leaves_behind() && newest != header.round
                           ? ResultOf(kept.record, kept.result->slot, header.round, newest)
                           : kept.result,
                       !header.without_result});
    return;
  }
  answers.push_back({std::move(sink),
                     Refusal(header.round, absl::FailedPreconditionError(absl::StrCat(
                                               "the result of round ", ToNumber(header.round),
                                               " of chunk ", ToNumber(id_), " of group \"",
                                               plan_.spec.name, "\" is no longer kept; round ",
                                               ToNumber(open_), " is open: rejoin"))),
                     false});
}

void ChunkRounds::NoteLateLocked(MemberId member, Round round) {
  Round& settled = settled_[member];
  if (!policy_->leaves_behind() || settled >= round) return;
  settled = round;
  ++late_contributions_;
}

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
  if (seats_.empty()) return false;
  if (held_from_.has_value() && open_ >= *held_from_) return false;
  if (!AskPolicyLocked([this](const OpenRound& open) { return policy_->MayClose(open); })) {
    return false;
  }
  return BehindLocked().empty();
}

void ChunkRounds::TryCloseLocked(Answers& answers) {
  if (!CanCloseLocked()) return;
  const Epoch& epoch = *roster_->EpochOf(plan_.id, open_);
  const bool exists =
      AskPolicyLocked([this](const OpenRound& open) { return policy_->HasContributors(open); });
  if (!exists && !AnyDataLaterLocked()) {
    AnswerSeatsLocked(Refusal(open_, absl::OutOfRangeError(absl::StrCat(
                                         "group \"", plan_.spec.name, "\" has no round ",
                                         ToNumber(open_), ": every member has ended or gone"))),
                      answers);
    return;
  }
  // Nobody can still ask for the oldest, and its slot is the one to be written now.
  const size_t limit = policy_->kept();
  while (kept_.size() > std::max<size_t>(1, limit - 1)) kept_.pop_back();
  SettleSeatsLocked();
  absl::StatusOr<KeptRound> closed = CloseLocked(epoch, answers);
  if (!closed.ok()) return AnswerSeatsLocked(Refusal(open_, closed.status()), answers);
  AnswerSeatsLocked(closed->result, answers);
  // Where all are waited for, only a follower can have asked for neither this round
  // nor the one before.
  if (!policy_->leaves_behind() && !AnybodyFollowsLocked(epoch)) kept_.clear();
  if (limit == 1) kept_.clear();
  kept_.push_front(*std::move(closed));
  policy_->Closed(open_);
  open_ = Next(open_);
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
  const Slot* newest = kept_.empty() ? nullptr : kept_.front().result->slot.get();
  if (!chunk_.compression.result.is_raw()) {
    return CloseEncodedReduction(chunk_, std::get<Reduction>(rule), contributions, newest, slot,
                                 check_finite);
  }
  if (optimizer == nullptr) {
    return CloseReduction(chunk_, rule, contributions, slot, check_finite);
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

absl::StatusOr<ChunkRounds::KeptRound> ChunkRounds::CloseLocked(const Epoch& epoch,
                                                                Answers& answers) {
  std::vector<Seated> contributions = SeatedLocked(epoch);
  SYNCGRADS_ASSIGN_OR_RETURN(
      std::shared_ptr<Slot> slot,
      pool_.Acquire(ResultBytes(chunk_, plan_.spec.rule, contributions.size()),
                    contributions.size()));
  SYNCGRADS_ASSIGN_OR_RETURN(Closed closed, ComputeLocked(contributions, *slot));
  if (!closed.finite && !TakesNonFinite(plan_.spec)) {
    SetAsideNonFiniteLocked(epoch, answers);
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
  RoundRecord record{generation_,
                     plan_.id,
                     id_,
                     open_,
                     epoch.number,
                     closed.value_bytes,
                     std::move(closed.counts),
                     std::move(closed.contributors),
                     closed.codec};
  // Nothing is sent that a restart could have forgotten.
  if (!slot->record.empty()) Publish(record, *slot);
  AnswerLeftOutLocked(record, slot, answers);
  std::shared_ptr<const RoundResult> result = ResultOf(record, std::move(slot), open_);
  return KeptRound{std::move(result), std::move(record)};
}

std::shared_ptr<const RoundResult> ChunkRounds::ResultOf(const RoundRecord& record,
                                                         std::shared_ptr<const Slot> slot,
                                                         Round asked, Round newest,
                                                         std::vector<uint32_t> left_out) const {
  UpdateHeader header = HeaderOf(asked);
  header.epoch = record.epoch;
  header.codec = record.codec;
  header.counts = record.counts;
  header.contributors = record.contributors;
  header.newest_round = newest;
  header.left_out = std::move(left_out);
  auto result = std::make_shared<RoundResult>();
  result->group = plan_.id;
  result->chunk = id_;
  result->round = asked;
  result->header = EncodeHeader(header, record.value_bytes);
  result->bare_header = EncodeHeader(header, 0);
  if (slot->arena_offset.has_value() && record.value_bytes > 0) {
    header.shared = {ToNumber(plan_.id), *slot->arena_offset, record.value_bytes};
    result->shared_header = EncodeHeader(header, 0);
  }
  result->payload = slot->values.span().first(record.value_bytes);
  result->slot = std::move(slot);
  return result;
}

void ChunkRounds::AnswerSeatsLocked(std::shared_ptr<const RoundResult> result, Answers& answers) {
  for (auto& [member, seat] : seats_) {
    answers.push_back({std::move(seat.sink), result, !seat.without_result});
  }
  seats_.clear();
}

UpdateHeader ChunkRounds::HeaderOf(Round round) const {
  UpdateHeader header;
  header.generation = generation_;
  header.group = plan_.id;
  header.chunk = id_;
  header.round = round;
  return header;
}

std::shared_ptr<const RoundResult> ChunkRounds::Refusal(Round round,
                                                        const absl::Status& error) const {
  UpdateHeader header = HeaderOf(round);
  header.error = error;
  auto refusal = std::make_shared<RoundResult>();
  refusal->round = round;
  refusal->bare_header = EncodeHeader(header, 0);
  return refusal;
}

}  // namespace syncgrads::server
