#include "server/core/rounds/chunk_versions.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "common/planted_bug.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "server/core/rounds/answer_sinks.h"
#include "server/core/rounds/computing.h"
#include "server/state/slot_record.h"

namespace syncgrads::server {
namespace {

// If there are this many clocks, those of members that were dropped are removed. A record usually
// has room for 16 clocks.
constexpr size_t kManyClocks = 12;

SlotShape ShapeOf(const Chunk& chunk, const Optimizer& optimizer) {
  SlotShape shape{chunk.bytes(), static_cast<size_t>(SlotCount(optimizer)), chunk.spans.size()};
  shape.kept = 1;
  return shape;
}

}  // namespace

ChunkVersions::ChunkVersions(const GroupPlan& plan, ChunkId chunk, Generation generation,
                             const CurrentRoster& roster, const Clock& clock,
                             std::shared_ptr<SlotSource> source, size_t position,
                             std::shared_ptr<GradientAlerts> alerts)
    : plan_(plan),
      id_(chunk),
      chunk_(plan.layout.chunk(chunk)),
      generation_(generation),
      answer_(generation, plan.id, chunk),
      optimizer_(std::get<Optimizer>(plan.spec.rule)),
      staleness_(std::get<Staleness>(plan.spec.policy)),
      clock_(clock),
      current_roster_(roster),
      alerts_(std::move(alerts)),
      pool_(ShapeOf(chunk_, optimizer_), std::move(source), position),
      taken_roster_(roster.Get().number) {
  MutexLock lock(mutex_);
  for (SlotPool::Kept& kept : pool_.TakeKept()) {
    record_ = std::move(kept.record);
    newest_ = std::move(kept.slot);
    if (IsPlanted(PlantedBug::kClockForgotten)) continue;
    for (const MemberClock& one : record_.clocks) clocks_[one.member] = one.clock;
  }
}

ChunkVersions::Turn::Turn(ChunkVersions& chunk) : chunk_(chunk) {
  chunk.mutex_.Lock();
  if (chunk.computing_) return;
  // Before the roster is read; see HasPushes.
  chunk.SetHasPushes(true);
  chunk.TakeRosterLocked();
}

ChunkVersions::Turn::~Turn() {
  if (!chunk_.computing_) {
    chunk_.ShowWaitLocked();
    chunk_.SetHasPushes(!chunk_.waiting_.empty() || !chunk_.pending_.empty());
    chunk_.roster_.reset();
  }
  chunk_.mutex_.Unlock();
}

CloseWork ChunkVersions::Seat(const PushHeader& header, Payload payload,
                              std::shared_ptr<AnswerSink> sink) {
  AnswerOutbox outbox;
  CloseWork work = CloseWork::kNone;
  {
    Turn turn(*this);
    if (computing_) {
      const absl::Status queued = queued_.Add(header, std::move(payload), sink);
      if (!queued.ok()) outbox.Add(std::move(sink), answer_.Refusal(header.round, queued));
    } else if (PushLocked(header, std::move(payload), std::move(sink), outbox)) {
      work = WorkLocked();
    }
  }
  outbox.Send();
  return work;
}

bool ChunkVersions::PushLocked(const PushHeader& header, Payload&& payload,
                               std::shared_ptr<AnswerSink>&& sink, AnswerOutbox& outbox) {
  if (const absl::Status valid = CheckPushLocked(header); !valid.ok()) {
    outbox.Add(std::move(sink), answer_.Refusal(header.round, valid));
    return false;
  }
  Waiting push{header.round,
               std::move(sink),
               header.without_result,
               header.skip,
               clock_.Now(),
               header.absent_spans,
               {}};
  const auto waiting = waiting_.find(header.member);
  if (waiting != waiting_.end() && header.round < waiting->second.clock) {
    // A retry that was delayed on a broken stream. The member has pushed a later clock since, so
    // it has received this answer before.
    std::shared_ptr<const RoundResult> answer = AnswerLocked(header.member, push);
    outbox.Add(std::move(push.sink), std::move(answer), !header.without_result);
    return false;
  }
  const auto pending =
      std::find_if(pending_.begin(), pending_.end(),
                   [&header](const Pending& pending) { return pending.member == header.member; });
  if (pending != pending_.end() && pending->clock < header.round) {
    outbox.Add(std::move(push.sink),
               answer_.Refusal(header.round,
                               absl::UnavailableError(absl::StrCat(
                                   "member ", ToNumber(header.member), " pushes round ",
                                   ToNumber(header.round), ", but its contribution to round ",
                                   ToNumber(pending->clock), " has not been applied yet"))));
    return false;
  }
  if (waiting != waiting_.end() && header.round == waiting->second.clock) {
    push.sink = AlsoTo(std::move(waiting->second.sink), std::move(push.sink));
    push.left_out = std::move(waiting->second.left_out);
  }
  waiting_[header.member] = std::move(push);
  const bool is_new =
      header.round == Round{0} ? newest_ == nullptr : header.round > ClockOfLocked(header.member);
  if (!header.skip && is_new && pending == pending_.end()) {
    pending_.push_back(
        {header.member, header.round,
         Contribution{false, 1.0, header.absent_spans, std::move(payload), header.codec}});
  } else if (header.skip) {
    AdvanceClockLocked(header.member, header.round);
  }
  counter().Contributed(header.member, header.round);
  return true;
}

absl::Status ChunkVersions::CheckPushLocked(const PushHeader& header) const {
  SYNCGRADS_RETURN_IF_ERROR(CheckSender(*roster_, plan_.id, header));
  if (header.round > Round{0} && newest_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("push ", ToNumber(header.round), " to chunk ", ToNumber(id_), " of group \"",
                     plan_.spec.name, "\", which has no parameters yet"));
  }
  const Roster::Entry& sender = *roster_->Find(header.member);
  if (header.skip || !sender.HasEnded(plan_.id, header.round)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker \"", sender.member.name, "\" contributes to step ", ToNumber(header.round),
      " of group \"", plan_.spec.name, "\", but ended its data before it"));
}

CloseWork ChunkVersions::WorkLocked() const {
  if (waiting_.empty() && pending_.empty()) return CloseWork::kNone;
  return WorkOf(std::max(pending_.size(), waiting_.size()));
}

CloseWork ChunkVersions::Close() {
  AnswerOutbox outbox;
  CloseWork work = CloseWork::kNone;
  {
    Turn turn(*this);
    if (!computing_) {
      AdvanceLocked(outbox);
      for (QueuedPushes::Push& push : queued_.Take()) {
        const bool waits =
            PushLocked(push.header, std::move(push.payload), std::move(push.sink), outbox);
        if (waits) work = WorkLocked();
      }
    }
  }
  outbox.Send();
  return work;
}

CloseWork ChunkVersions::TakeRoster() {
  Turn turn(*this);
  return computing_ ? CloseWork::kNone : WorkLocked();
}

void ChunkVersions::TakeRosterLocked() {
  CurrentRoster::Version newest = current_roster_.Get();
  roster_ = std::move(newest.roster);
  if (newest.number == taken_roster_) return;
  taken_roster_ = newest.number;
  ForgetGoneLocked();
}

void ChunkVersions::ForgetGoneLocked() {
  const auto has_gone = [this](MemberId member) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Roster::Entry* entry = roster_->Find(member);
    return entry == nullptr || entry->gone;
  };
  const auto is_of_gone = [&has_gone](const auto& of_member) { return has_gone(of_member.first); };
  counter().Forget(has_gone);
  std::erase_if(read_, is_of_gone);
  std::erase_if(finished_, is_of_gone);
  // A member that the roster has forgotten does not wait for an answer.
  std::erase_if(waiting_, [this](const auto& waiting) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return roster_->Find(waiting.first) == nullptr;
  });
}

void ChunkVersions::ForgetClocksLocked() {
  if (clocks_.size() < kManyClocks) return;
  std::erase_if(clocks_, [this](const auto& clock) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Roster::Entry* entry = roster_->Find(clock.first);
    // A retried push of a member that left gracefully may still arrive on a slow stream.
    return entry == nullptr || (entry->gone && !entry->left_gracefully);
  });
}

void ChunkVersions::AdvanceLocked(AnswerOutbox& outbox) {
  while (!pending_.empty()) {
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    const absl::Status applied = ApplyLocked(pending);
    if (applied.ok()) continue;
    auto waiting = waiting_.extract(pending.member);
    if (waiting.empty()) continue;
    outbox.Add(std::move(waiting.mapped().sink), answer_.Refusal(pending.clock, applied));
  }
  // A roster that has come meanwhile may end the wait for a member.
  TakeRosterLocked();
  if (NobodySendsInitialLocked()) {
    const absl::Status error = absl::FailedPreconditionError(
        absl::StrCat("no member pushed the initial parameters of chunk ", ToNumber(id_),
                     " of group \"", plan_.spec.name, "\": one member must broadcast them"));
    for (auto& [member, push] : std::exchange(waiting_, {})) {
      outbox.Add(std::move(push.sink), answer_.Refusal(push.clock, error));
    }
  }
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    const auto& [member, push] = *waiting;
    if (newest_ == nullptr || !AwaitedLocked(member, push).empty()) {
      ++waiting;
      continue;
    }
    const bool with_payload = !push.without_result;
    std::shared_ptr<const RoundResult> result = AnswerLocked(member, push);
    outbox.Add(std::move(waiting->second.sink), std::move(result), with_payload);
    waiting = waiting_.erase(waiting);
  }
}

bool ChunkVersions::NobodySendsInitialLocked() const {
  if (newest_ != nullptr || waiting_.empty()) return false;
  const std::vector<Member>& members = roster_->newest_epoch()->members;
  for (const Member& member : members) {
    if (!roster_->Find(member.id)->gone && !waiting_.contains(member.id)) return false;
  }
  return true;
}

absl::Status ChunkVersions::ApplyLocked(Pending& pending) {
  const TraceSpan span(kTraceUpdate,
                       TraceArgs::Of(pending.clock, trace_job(), plan_.id, id_, pending.member));
  const bool is_first = newest_ == nullptr;
  // If two members push initial parameters, or if that push is retried, only the first one counts.
  if (pending.clock == Round{0} && !is_first) return absl::OkStatus();
  ForgetClocksLocked();
  const size_t clocks = clocks_.size() + 1;
  absl::StatusOr<std::shared_ptr<Slot>> acquired = absl::UnknownError("");
  {
    const Computing computing(mutex_, computing_);
    acquired = pool_.Acquire(chunk_.bytes(), clocks);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<Slot> slot, std::move(acquired));
  SYNCGRADS_ASSIGN_OR_RETURN(Closed closed, WriteLocked(pending, *slot));
  if (closed.value_bytes == 0) {
    return absl::FailedPreconditionError(absl::StrCat("the initial parameters of chunk ",
                                                      ToNumber(id_), " of group \"",
                                                      plan_.spec.name, "\" have absent spans"));
  }
  AdvanceClockLocked(pending.member, pending.clock);
  const Epoch* epoch = roster_->newest_epoch();
  RoundRecord record{generation_,
                     plan_.id,
                     id_,
                     is_first ? Round{0} : Next(record_.round),
                     epoch->number,
                     closed.value_bytes,
                     std::move(closed.counts),
                     {},
                     {}};
  for (const auto& [member, at] : clocks_) record.clocks.push_back({member, at});
  if (!slot->record.empty()) {
    if (RecordBytes(record.counts.size(), record.clocks.size()) > slot->record.size()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a version of group \"", plan_.spec.name, "\" has the clocks of ",
                       record.clocks.size(), " members, and its record has no room for them"));
    }
    const Computing computing(mutex_, computing_);
    Publish(record, *slot);
  }
  record_ = std::move(record);
  newest_ = std::move(slot);
  counter().VersionMade(clock_.Now());
  return absl::OkStatus();
}

absl::StatusOr<Closed> ChunkVersions::WriteLocked(Pending& pending, Slot& slot) {
  const Seated seated[] = {{0, &pending.contribution}};
  if (newest_ == nullptr) {
    const Computing computing(mutex_, computing_);
    return CloseInitial(chunk_, seated, slot);
  }
  return UpdateLocked(pending, slot);
}

absl::StatusOr<Closed> ChunkVersions::UpdateLocked(Pending& pending, Slot& slot) {
  const EpochRate rate = RateLocked(pending.member);
  const ScheduledOptimizer scaled = OptimizerOf(plan_.spec, rate);
  const Seated seated[] = {{0, &pending.contribution}};
  const bool check_finite = !TakesNonFinite(plan_.spec);
  const Slot& newest = *newest_;
  Closed closed;
  std::vector<NonFinite> not_finite;
  {
    const Computing computing(mutex_, computing_);
    closed = CloseUpdate(chunk_, scaled, seated, newest, slot, check_finite);
    if (closed.finite) return closed;
    not_finite = FindNonFinite(chunk_, pending.contribution);
  }
  SYNCGRADS_RETURN_IF_ERROR(SetAsideNonFiniteLocked(pending, not_finite));
  const Computing computing(mutex_, computing_);
  return CloseUpdate(chunk_, scaled, seated, newest, slot);
}

absl::Status ChunkVersions::SetAsideNonFiniteLocked(Pending& pending,
                                                    absl::Span<const NonFinite> found) {
  if (found.empty()) return absl::OkStatus();
  const std::string worker = roster_->NameOf(pending.member);
  const std::string first = ToString(plan_, chunk_, pending.clock, worker, found[0]);
  const bool refused = plan_.spec.non_finite == OnBad::kReject;
  alerts_->AddNonFinite(worker,
                        absl::StrCat(first, refused ? ": it is refused" : ": it is left out"));
  counter().NonFinite(pending.member);
  if (refused) {
    // No member has to wait for this clock any more.
    AdvanceClockLocked(pending.member, pending.clock);
    return absl::InvalidArgumentError(first);
  }
  std::vector<uint32_t> left_out;
  for (const NonFinite& one : found) left_out.push_back(one.span);
  pending.contribution = WithoutSpans(chunk_, pending.contribution, left_out);
  const auto waiting = waiting_.find(pending.member);
  if (waiting != waiting_.end()) waiting->second.left_out = std::move(left_out);
  return absl::OkStatus();
}

EpochRate ChunkVersions::RateLocked(MemberId member) const {
  const auto read = read_.find(member);
  EpochRate rate = RateIn(plan_.spec, *roster_->newest_epoch());
  if (!staleness_.scales_rate || read == read_.end()) return rate;
  const uint64_t others = ToNumber(record_.round) - ToNumber(read->second);
  rate.factor /= static_cast<double>(std::max<uint64_t>(1, others));
  return rate;
}

void ChunkVersions::AdvanceClockLocked(MemberId member, Round to) {
  Round& clock = clocks_[member];
  clock = std::max(clock, to);
}

Round ChunkVersions::ClockOfLocked(MemberId member) const {
  const auto clock = clocks_.find(member);
  return clock == clocks_.end() ? Round{0} : clock->second;
}

std::vector<MemberId> ChunkVersions::BehindLocked(Round bound) const {
  std::vector<MemberId> behind;
  for (const Member& member : roster_->newest_epoch()->members) {
    const Round clock = ClockOfLocked(member.id);
    const Roster::Entry& entry = *roster_->Find(member.id);
    if (clock < bound && !entry.gone && entry.HasData(plan_.id, Next(clock))) {
      behind.push_back(member.id);
    }
  }
  return behind;
}

bool ChunkVersions::AnyDataLocked() const { return !BehindLocked(Round{~uint64_t{0}}).empty(); }

std::vector<MemberId> ChunkVersions::AwaitedLocked(MemberId member, const Waiting& waiting) const {
  if (waiting.clock == Round{0}) return {};
  if (roster_->Find(member)->HasEnded(plan_.id, waiting.clock)) {
    return BehindLocked(Round{~uint64_t{0}});
  }
  if (!staleness_.bound.has_value() || ToNumber(waiting.clock) <= *staleness_.bound) return {};
  const uint64_t bound = *staleness_.bound + (IsPlanted(PlantedBug::kBoundExceeded) ? 1 : 0);
  return BehindLocked(Round{ToNumber(waiting.clock) - bound});
}

std::shared_ptr<const RoundResult> ChunkVersions::AnswerLocked(MemberId member,
                                                               const Waiting& waiting) {
  if (waiting.clock > Round{0} && roster_->Find(member)->HasEnded(plan_.id, waiting.clock)) {
    const auto [finished, first] = finished_.try_emplace(member, waiting.clock);
    if (waiting.clock > finished->second) {
      return answer_.Refusal(waiting.clock, absl::OutOfRangeError(absl::StrCat(
                                                "group \"", plan_.spec.name, "\" has no step ",
                                                ToNumber(waiting.clock),
                                                ": every member has ended its data or left")));
    }
  }
  read_[member] = record_.round;
  const Epoch& epoch = *roster_->newest_epoch();
  UpdateHeader header = answer_.HeaderOf(waiting.clock);
  header.epoch = epoch.number;
  // The counts are those of the member's own push: each version has only one contributor.
  header.counts.assign(chunk_.spans.size(), waiting.skip && waiting.clock > Round{0} ? 0 : 1);
  for (uint32_t span : waiting.absent) header.counts[span] = 0;
  for (uint32_t span : waiting.left_out) header.counts[span] = 0;
  header.left_out = waiting.left_out;
  const std::optional<uint32_t> rank = epoch.RankOf(member);
  if (rank.has_value() && !waiting.skip) header.contributors.push_back(*rank);
  return answer_.Result(header, record_.value_bytes, newest_);
}

const std::pair<const MemberId, ChunkVersions::Waiting>* ChunkVersions::OldestWaitingLocked()
    const {
  const std::pair<const MemberId, Waiting>* oldest = nullptr;
  for (const auto& waiting : waiting_) {
    const auto& [member, push] = waiting;
    const Roster::Entry* entry = roster_->Find(member);
    // A member that the roster has forgotten does not wait. A follower waits for the end of all
    // members' data, not for certain members.
    if (entry == nullptr || entry->HasEnded(plan_.id, push.clock)) continue;
    if (oldest == nullptr || push.since < oldest->second.since) oldest = &waiting;
  }
  return oldest;
}

void ChunkVersions::ShowWaitLocked() {
  const auto* const oldest = OldestWaitingLocked();
  SetWaitingSince(oldest == nullptr ? absl::InfiniteFuture() : oldest->second.since);
}

std::optional<ChunkWait> ChunkVersions::ExplainBriefly() const {
  MutexLock lock(mutex_);
  if (!computing_) roster_ = current_roster_.Get().roster;
  std::optional<ChunkWait> wait;
  if (const auto* const oldest = OldestWaitingLocked(); oldest != nullptr) {
    wait = ChunkWait{oldest->second.clock, oldest->second.since, {}};
  }
  if (!computing_) roster_.reset();
  return wait;
}

std::optional<ChunkWait> ChunkVersions::Explain() const {
  MutexLock lock(mutex_);
  if (!computing_) roster_ = current_roster_.Get().roster;
  std::optional<ChunkWait> wait;
  if (const auto* const oldest = OldestWaitingLocked(); oldest != nullptr) {
    const auto& [member, push] = *oldest;
    wait = ChunkWait{push.clock, push.since,
                     newest_ == nullptr ? BehindLocked(Round{1}) : AwaitedLocked(member, push)};
  }
  if (!computing_) roster_.reset();
  return wait;
}

Round ChunkVersions::open_round() const {
  MutexLock lock(mutex_);
  if (newest_ == nullptr) return Round{0};
  const std::shared_ptr<const Roster> roster = current_roster_.Get().roster;
  std::optional<Round> slowest;
  Round fastest{};
  for (const Member& member : roster->newest_epoch()->members) {
    const Round clock = ClockOfLocked(member.id);
    fastest = std::max(fastest, clock);
    if (!roster->Find(member.id)->HasData(plan_.id, Next(clock))) continue;
    slowest = std::min(slowest.value_or(clock), clock);
  }
  return Next(slowest.value_or(fastest));
}

}  // namespace syncgrads::server
