#include "server/core/rounds/chunk_rounds.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/planted_bug.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "server/core/rounds/computing.h"

namespace syncgrads::server {

ChunkRounds::ChunkRounds(const GroupPlan& plan, ChunkId chunk, Generation generation,
                         const CurrentRoster& roster, const Clock& clock,
                         std::shared_ptr<SlotSource> source, size_t position,
                         std::shared_ptr<GradientAlerts> alerts, SeatListener* listener,
                         std::function<void(ReducedChunk)> report_reduced)
    : plan_(plan),
      id_(chunk),
      answer_(generation, plan.id, chunk),
      clock_(clock),
      current_roster_(roster),
      alerts_(std::move(alerts)),
      listener_(listener),
      report_reduced_(std::move(report_reduced)),
      open_round_(ToNumber(FirstRound(plan.spec.rule))),
      policy_(MakeRoundPolicy(plan.spec)),
      taken_roster_(roster.Get().number),
      open_(FirstRound(plan.spec.rule)),
      seats_(plan, chunk, answer_, clock),
      writer_(plan, chunk, generation, policy_->kept(), std::move(source), position),
      reduced_(plan, chunk, generation),
      kept_(plan, answer_, *policy_),
      late_(policy_->leaves_behind()) {
  MutexLock lock(mutex_);
  for (SlotPool::Kept& kept : writer_.TakeKept()) {
    kept_.Restore(std::move(kept.record), std::move(kept.slot));
  }
  if (kept_.newest_round().has_value()) SetOpenLocked(Next(*kept_.newest_round()));
}

ChunkRounds::Turn::Turn(ChunkRounds& chunk, AnswerOutbox& outbox) : chunk_(chunk) {
  chunk.mutex_.Lock();
  if (chunk.computing_) return;
  // Before the roster is read; see HasPushes.
  chunk.SetHasPushes(true);
  chunk.TakeRosterLocked(outbox);
}

ChunkRounds::Turn::~Turn() {
  if (!chunk_.computing_) {
    chunk_.roster_.reset();
    chunk_.ShowWaitLocked();
    chunk_.SetHasPushes(!chunk_.seats_.empty() || chunk_.reduced_.exists());
  }
  chunk_.mutex_.Unlock();
}

void ChunkRounds::Send(Outbox& outbox) {
  outbox.answers.Send();
  if (listener_ != nullptr) {
    for (const auto& [round, member] : outbox.seated) listener_->Seated(round, member);
  }
  if (report_reduced_ == nullptr) return;
  for (ReducedChunk& reduced : outbox.reduced) report_reduced_(std::move(reduced));
}

CloseWork ChunkRounds::Seat(const PushHeader& header, Payload payload,
                            std::shared_ptr<AnswerSink> sink) {
  AnswerOutbox outbox;
  Pushed pushed = Pushed::kAnswered;
  CloseWork work = CloseWork::kNone;
  {
    Turn turn(*this, outbox);
    if (computing_) {
      const absl::Status queued = queued_.Add(header, std::move(payload), sink);
      if (!queued.ok()) outbox.Add(std::move(sink), answer_.Refusal(header.round, queued));
    } else {
      pushed = PushLocked(header, std::move(payload), std::move(sink), outbox);
      // The open round may have waited for this request of a follower.
      if (pushed != Pushed::kAnswered) work = WorkLocked();
    }
  }
  outbox.Send();
  if (pushed == Pushed::kSeated && listener_ != nullptr) {
    listener_->Seated(header.round, header.member);
  }
  return work;
}

CloseWork ChunkRounds::Close() {
  Outbox outbox;
  CloseWork work = CloseWork::kNone;
  {
    Turn turn(*this, outbox.answers);
    if (!computing_ && CanCloseLocked()) {
      CloseLocked(outbox);
      TakeQueuedLocked(outbox);
      work = WorkLocked();
    }
  }
  Send(outbox);
  return work;
}

void ChunkRounds::TakeQueuedLocked(Outbox& outbox) {
  TakeRosterLocked(outbox.answers);
  if (queued_norms_.has_value()) reduced_.SetNorms(*std::exchange(queued_norms_, std::nullopt));
  for (QueuedPushes::Push& push : queued_.Take()) {
    const Pushed pushed =
        PushLocked(push.header, std::move(push.payload), std::move(push.sink), outbox.answers);
    if (pushed != Pushed::kSeated) continue;
    outbox.seated.emplace_back(push.header.round, push.header.member);
  }
}

CloseWork ChunkRounds::Fix(Round round, const std::vector<MemberId>& members) {
  AnswerOutbox outbox;
  CloseWork work = CloseWork::kNone;
  {
    Turn turn(*this, outbox);
    // The set of a round whose result is computed has been known before.
    if (computing_ ? round > open_ : round >= open_) policy_->Fix(round, members);
    if (!computing_) work = WorkLocked();
  }
  outbox.Send();
  return work;
}

CloseWork ChunkRounds::SetNorms(const StepNorms& norms) {
  MutexLock lock(mutex_);
  if (norms.round < open_) return CloseWork::kNone;
  if (computing_) {
    queued_norms_ = norms;
    return CloseWork::kNone;
  }
  reduced_.SetNorms(norms);
  return reduced_.HasNorms() ? WorkOf(seats_.taken().size()) : CloseWork::kNone;
}

std::optional<ReducedChunk> ChunkRounds::Reduced() const {
  MutexLock lock(mutex_);
  if (computing_ || !reduced_.exists()) return std::nullopt;
  return reduced_.Report();
}

CloseWork ChunkRounds::TakeRoster() {
  AnswerOutbox outbox;
  CloseWork work = CloseWork::kNone;
  {
    Turn turn(*this, outbox);
    if (!computing_) work = WorkLocked();
  }
  outbox.Send();
  return work;
}

void ChunkRounds::TakeRosterLocked(AnswerOutbox& outbox) {
  CurrentRoster::Version newest = current_roster_.Get();
  roster_ = std::move(newest.roster);
  if (newest.number == taken_roster_) return;
  taken_roster_ = newest.number;
  // Members that were dropped have no entries: their pushes are refused.
  const auto has_gone = [this](MemberId member) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Roster::Entry* entry = roster_->Find(member);
    return entry == nullptr || (entry->gone && !entry->left_gracefully);
  };
  kept_.Forget(has_gone);
  late_.Forget(has_gone);
  counter().Forget([this](MemberId member) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Roster::Entry* entry = roster_->Find(member);
    return entry == nullptr || entry->gone;
  });
  if (reduced_.exists()) return;  // a reduced round keeps its epoch
  const auto check = [this](MemberId member, const RoundSeats::Seat& seat)
                         ABSL_NO_THREAD_SAFETY_ANALYSIS {
                           return CheckSeatLocked(member, seat.made_in, seat.contribution.skip);
                         };
  seats_.Check(open_, check, outbox);
}

Round ChunkRounds::Hold() {
  MutexLock lock(mutex_);
  // A round whose result is being computed has contributions.
  held_from_ = !computing_ && seats_.empty() && !reduced_.exists() ? open_ : Next(open_);
  return *held_from_;
}

CloseWork ChunkRounds::EndHold() {
  AnswerOutbox outbox;
  CloseWork work = CloseWork::kNone;
  {
    Turn turn(*this, outbox);
    held_from_.reset();
    if (!computing_) work = WorkLocked();
  }
  outbox.Send();
  return work;
}

void ChunkRounds::ShowWaitLocked() {
  const bool waits = reduced_.exists() || !seats_.empty();
  SetWaitingSince(waits ? seats_.since() : absl::InfiniteFuture());
}

std::optional<ChunkWait> ChunkRounds::ExplainBriefly() const {
  MutexLock lock(mutex_);
  return WaitLocked();
}

std::optional<ChunkWait> ChunkRounds::Explain() const {
  MutexLock lock(mutex_);
  std::optional<ChunkWait> wait = WaitLocked();
  if (!wait.has_value() || wait->reduced) return wait;
  // The lock has been held since WaitLocked, so no result is being computed, and `roster_` is null.
  roster_ = current_roster_.Get().roster;
  wait->missing = MissingLocked();
  roster_.reset();
  return wait;
}

std::optional<ChunkWait> ChunkRounds::WaitLocked() const {
  if (computing_) return std::nullopt;
  if (reduced_.exists()) return ChunkWait{open_, seats_.since(), {}, /*reduced=*/true};
  if (seats_.empty()) return std::nullopt;
  return ChunkWait{open_, seats_.since(), {}};
}

std::shared_ptr<const RoundResult> ChunkRounds::Kept(Round round) const {
  MutexLock lock(mutex_);
  return kept_.Find(round);
}

void ChunkRounds::SetOpenLocked(Round round) {
  open_ = round;
  open_round_ = ToNumber(round);
}

ChunkRounds::Pushed ChunkRounds::PushLocked(const PushHeader& header, Payload&& payload,
                                            std::shared_ptr<AnswerSink>&& sink,
                                            AnswerOutbox& outbox) {
  const auto refuse = [&](const absl::Status& error) {
    outbox.Add(std::move(sink), answer_.Refusal(header.round, error, header.epoch));
    return Pushed::kAnswered;
  };
  if (absl::Status status = CheckSender(*roster_, plan_.id, header); !status.ok()) {
    return refuse(status);
  }
  if (header.round > open_ && policy_->GivesUpFor(header.round, plan_.id, *roster_)) {
    SkipToLocked(header.round, outbox);
  }
  if (header.round > open_) {
    if (IsAheadLocked(header.member)) {
      return refuse(absl::UnavailableError(absl::StrCat(
          "round ", ToNumber(header.round), " of chunk ", ToNumber(id_), " of group \"",
          plan_.spec.name, "\" waits for round ", ToNumber(open_), " of the previous epoch")));
    }
    return refuse(absl::FailedPreconditionError(
        absl::StrCat("round ", ToNumber(header.round), " of chunk ", ToNumber(id_), " of group \"",
                     plan_.spec.name, "\" is not open yet; round ", ToNumber(open_), " is")));
  }
  kept_.Request(header.member, header.round);
  if (header.round < open_) {
    if (!header.skip) late_.AddLate(header.member, header.round);
    kept_.Answer(header, open_, std::move(sink), outbox);
    return Pushed::kRequested;
  }
  if (absl::Status status = CheckSeatLocked(header.member, header.epoch, header.skip);
      !status.ok()) {
    return refuse(status);
  }
  const Roster::Entry& sender = *roster_->Find(header.member);
  if (!header.skip && sender.HasEnded(plan_.id, open_)) {
    return refuse(absl::FailedPreconditionError(absl::StrCat(
        "worker \"", sender.member.name, "\" contributes to round ", ToNumber(header.round),
        " of group \"", plan_.spec.name, "\", but ended its data before it")));
  }
  const bool is_new = seats_.Take(header, std::move(payload), std::move(sink));
  if (!is_new) return Pushed::kAnswered;
  counter().Contributed(header.member, open_);
  if (counter().is_first() && !sender.HasEnded(plan_.id, open_)) {
    counter().AddLag(header.member, clock_.Now() - seats_.since());
  }
  return Pushed::kSeated;
}

absl::Status ChunkRounds::CheckSeatLocked(MemberId member, uint64_t made_in, bool skip) const {
  const Epoch& epoch = EpochLocked();
  if (epoch.Has(member)) {
    // A skip has no values, and the initial parameters do not depend on the epoch.
    const bool depends = plan_.spec.one_epoch && !skip && open_ != Round{0};
    if (!depends || made_in == epoch.number) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("a contribution to round ", ToNumber(open_),
                                           " of group \"", plan_.spec.name, "\" was made in epoch ",
                                           made_in, ", but the round belongs to epoch ",
                                           epoch.number, ": contribute again"));
  }
  if (IsAheadLocked(member)) {
    // A newcomer may request the result of this round once the round has closed.
    return absl::UnavailableError(absl::StrCat("round ", ToNumber(open_), " of chunk ",
                                               ToNumber(id_), " of group \"", plan_.spec.name,
                                               "\" has not closed yet"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "member ", ToNumber(member), " (\"", roster_->NameOf(member), "\") is not in epoch ",
      epoch.number, ", which round ", ToNumber(open_), " belongs to"));
}

bool ChunkRounds::IsAheadLocked(MemberId member) const {
  const Epoch& epoch = EpochLocked();
  return !epoch.Has(member) && roster_->newest_epoch()->number > epoch.number &&
         roster_->newest_epoch()->Has(member);
}

void ChunkRounds::SkipToLocked(Round round, AnswerOutbox& outbox) {
  const absl::Status error = absl::AbortedError(
      absl::StrCat("round ", ToNumber(open_), " of group \"", plan_.spec.name,
                   "\" was abandoned: a member has pushed round ", ToNumber(round)));
  seats_.AnswerAll(answer_.Refusal(open_, error), outbox);
  SetOpenLocked(round);
}

const Epoch& ChunkRounds::EpochLocked() const { return *roster_->EpochOf(plan_.id, open_); }

OpenRound ChunkRounds::ViewLocked() const {
  return {plan_.id, open_, EpochLocked(), *roster_, seats_};
}

std::vector<MemberId> ChunkRounds::MissingLocked() const {
  if (roster_->EpochOf(plan_.id, open_) == nullptr) return {};
  std::vector<MemberId> missing = policy_->Missing(ViewLocked());
  const std::set<MemberId> listed(missing.begin(), missing.end());
  for (MemberId member : kept_.Behind(open_, *roster_)) {
    if (!listed.contains(member)) missing.push_back(member);
  }
  return missing;
}

bool ChunkRounds::AnyDataLaterLocked() const {
  const Epoch& newest = *roster_->newest_epoch();
  if (newest.number == EpochLocked().number) return false;
  for (const Member& member : newest.members) {
    const Roster::Entry& entry = *roster_->Find(member.id);
    if (!entry.gone && !entry.ended.contains(plan_.id)) return true;
  }
  return false;
}

bool ChunkRounds::CanCloseLocked() const {
  if (reduced_.exists()) return reduced_.HasNorms();
  if (seats_.empty()) return false;
  if (held_from_.has_value() && open_ >= *held_from_) return false;
  return policy_->MayClose(ViewLocked()) && kept_.Behind(open_, *roster_).empty();
}

CloseWork ChunkRounds::WorkLocked() const {
  if (!CanCloseLocked()) return CloseWork::kNone;
  return WorkOf(seats_.taken().size());
}

void ChunkRounds::CloseLocked(Outbox& outbox) {
  // The round is complete, so reports of rounds that wait leave it out.
  SetWaitingSince(absl::InfiniteFuture());
  if (reduced_.exists()) return UseNormsLocked(outbox);
  const bool exists = policy_->HasContributors(ViewLocked());
  if (!exists && (!AnyDataLaterLocked() || IsPlanted(PlantedBug::kNewcomersAfterTheEnd))) {
    const absl::Status error = absl::OutOfRangeError(
        absl::StrCat("group \"", plan_.spec.name, "\" has no round ", ToNumber(open_),
                     ": every member has ended its data or left"));
    return seats_.AnswerAll(answer_.Refusal(open_, error), outbox.answers);
  }
  // No member can request the oldest round any more. The new result is written to its slot.
  kept_.MakeRoom();
  SettleSeatsLocked();
  absl::StatusOr<WrittenResult> written = WriteLocked(outbox.answers);
  if (!written.ok()) {
    return seats_.AnswerAll(answer_.Refusal(open_, written.status()), outbox.answers);
  }
  if (written->averaged_only) return ReduceLocked(*std::move(written), outbox);
  KeepLocked(*std::move(written), outbox.answers);
}

std::vector<Seated> ChunkRounds::CountedLocked() const {
  const Epoch& epoch = EpochLocked();
  std::vector<Seated> contributions;
  contributions.reserve(seats_.taken().size());
  for (uint32_t rank = 0; rank < epoch.members.size(); ++rank) {
    const auto seat = seats_.taken().find(epoch.members[rank].id);
    if (seat == seats_.taken().end() || !policy_->Counts(open_, seat->first)) continue;
    contributions.push_back({rank, &seat->second.contribution});
  }
  return contributions;
}

void ChunkRounds::SettleSeatsLocked() {
  if (!policy_->leaves_behind()) return;
  for (const auto& [member, seat] : seats_.taken()) {
    if (seat.contribution.skip || policy_->Counts(open_, member)) {
      late_.Settle(member, open_);
    } else {
      late_.AddLate(member, open_);
    }
  }
}

absl::StatusOr<WrittenResult> ChunkRounds::WriteLocked(AnswerOutbox& outbox) {
  const bool updates =
      std::holds_alternative<Optimizer>(plan_.spec.rule) && !NeedsNorms(plan_.spec);
  const TraceSpan span(updates ? kTraceUpdate : kTraceReduce, TraceArgsLocked());
  const Epoch& epoch = EpochLocked();
  const Slot* const previous = kept_.newest_slot();
  std::vector<Seated> contributions = CountedLocked();
  absl::StatusOr<WrittenResult> written = absl::UnknownError("");
  std::vector<MemberId> not_finite;
  {
    const Computing computing(mutex_, computing_);
    written = writer_.Write(epoch, contributions, previous);
    if (!written.ok() || written->closed.finite || TakesNonFinite(plan_.spec)) return written;
    not_finite = seats_.SetAsideNonFinite(open_, epoch, contributions, *alerts_, outbox);
  }
  for (MemberId member : not_finite) counter().NonFinite(member);
  contributions = CountedLocked();
  const Computing computing(mutex_, computing_);
  SYNCGRADS_RETURN_IF_ERROR(writer_.WriteAgain(contributions, previous, *written));
  return written;
}

void ChunkRounds::ReduceLocked(WrittenResult averaged, Outbox& outbox) {
  const Slot& previous = *kept_.newest_slot();
  {
    const Computing computing(mutex_, computing_);
    reduced_.Begin(open_, std::move(averaged), previous);
  }
  outbox.reduced.push_back(reduced_.Report());
  // After a restart of this server, the norms may be received before the round is reduced.
  if (reduced_.HasNorms()) UseNormsLocked(outbox);
}

void ChunkRounds::UseNormsLocked(Outbox& outbox) {
  const TraceSpan span(kTraceUpdate, TraceArgsLocked());
  const Slot& previous = *kept_.newest_slot();
  std::optional<WrittenResult> written;
  {
    const Computing computing(mutex_, computing_);
    written = reduced_.UseNorms(previous);
  }
  if (!written.has_value()) {
    outbox.reduced.push_back(reduced_.Report());
    return;
  }
  // If the policy leaves members behind, contributions that arrived after the round was reduced are
  // late.
  SettleSeatsLocked();
  KeepLocked(*std::move(written), outbox.answers);
}

void ChunkRounds::KeepLocked(WrittenResult written, AnswerOutbox& outbox) {
  // Publish before anything is sent: a restart must not lose a result that a member has.
  RoundRecord record;
  {
    const Computing computing(mutex_, computing_);
    record = writer_.PublishResult(open_, written);
  }
  seats_.AnswerLeftOut(record, written.slot, outbox);
  std::shared_ptr<const RoundResult> result =
      answer_.Result(record, std::move(written.slot), open_);
  seats_.AnswerAll(result, outbox);
  kept_.Add(std::move(result), std::move(record), *roster_);
  policy_->Closed(open_);
  const absl::Time now = clock_.Now();
  counter().RoundClosed(seats_.since(), now);
  RecordTraceWait(kTraceRound, seats_.since(), now, TraceArgsLocked());
  SetOpenLocked(Next(open_));
}

}  // namespace syncgrads::server
