#include "server/core/chunk_versions.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "common/status_macros.h"
#include "server/core/answer_sinks.h"
#include "server/core/non_finite.h"
#include "server/state/slot_record.h"

namespace syncgrads::server {
namespace {

SlotShape ShapeOf(const Chunk& chunk, const Optimizer& optimizer) {
  SlotShape shape{chunk.bytes(), static_cast<size_t>(SlotCount(optimizer)), chunk.spans.size()};
  shape.kept = 1;
  return shape;
}

}  // namespace

ChunkVersions::ChunkVersions(const GroupPlan& plan, ChunkId chunk, Generation generation,
                             std::shared_ptr<const Roster> roster, const Clock& clock,
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
      alerts_(std::move(alerts)),
      pool_(ShapeOf(chunk_, optimizer_), std::move(source), position),
      roster_(std::move(roster)) {
  MutexLock lock(mutex_);
  for (SlotPool::Kept& kept : pool_.TakeKept()) {
    record_ = std::move(kept.record);
    newest_ = std::move(kept.slot);
    for (const MemberClock& one : record_.clocks) clocks_[one.member] = one.clock;
  }
}

bool ChunkVersions::Seat(const PushHeader& header, Payload payload,
                         std::shared_ptr<AnswerSink> sink) {
  std::shared_ptr<const RoundResult> answer;
  bool with_payload = false;
  {
    MutexLock lock(mutex_);
    const absl::Status valid = CheckPushLocked(header);
    Waiting push{header.round,        sink, header.without_result, header.skip, clock_.Now(),
                 header.absent_spans, {}};
    const auto waiting = waiting_.find(header.member);
    if (!valid.ok()) {
      answer = answer_.Refusal(header.round, valid);
    } else if (waiting != waiting_.end() && header.round < waiting->second.clock) {
      // Repeated on a stream that its sender has given up: it was answered long ago.
      answer = AnswerLocked(header.member, push);
      with_payload = !header.without_result;
    } else {
      if (waiting != waiting_.end() && header.round == waiting->second.clock) {
        push.sink = AlsoTo(std::move(waiting->second.sink), std::move(push.sink));
      }
      waiting_[header.member] = std::move(push);
      const bool queued =
          std::any_of(pending_.begin(), pending_.end(), [&header](const Pending& pending) {
            return pending.member == header.member && pending.clock >= header.round;
          });
      const bool is_new = header.round == Round{0} ? newest_ == nullptr
                                                   : header.round > ClockOfLocked(header.member);
      if (!header.skip && is_new && !queued) {
        pending_.push_back(
            {header.member, header.round,
             Contribution{false, 1.0, header.absent_spans, std::move(payload), header.codec}});
      } else if (header.skip) {
        Round& clock = clocks_[header.member];
        clock = std::max(clock, header.round);
      }
    }
  }
  if (answer == nullptr) return true;
  sink->Send(std::move(answer), with_payload);
  return false;
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

void ChunkVersions::Close() {
  Answers answers;
  {
    MutexLock lock(mutex_);
    AdvanceLocked(answers);
  }
  for (Answer& answer : answers) answer.sink->Send(std::move(answer.result), answer.with_payload);
}

void ChunkVersions::SetRoster(std::shared_ptr<const Roster> roster) {
  {
    MutexLock lock(mutex_);
    roster_ = std::move(roster);
  }
  Close();
}

void ChunkVersions::AdvanceLocked(Answers& answers) {
  while (!pending_.empty()) {
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    const absl::Status applied = ApplyLocked(pending);
    if (applied.ok()) continue;
    auto waiting = waiting_.extract(pending.member);
    if (waiting.empty()) continue;
    answers.push_back(
        {std::move(waiting.mapped().sink), answer_.Refusal(pending.clock, applied), false});
  }
  if (NobodyGivesLocked()) {
    for (auto& [member, push] : std::exchange(waiting_, {})) {
      answers.push_back(
          {std::move(push.sink),
           answer_.Refusal(push.clock, absl::FailedPreconditionError(absl::StrCat(
                                           "nobody gave the initial values of chunk ",
                                           ToNumber(id_), " of group \"", plan_.spec.name,
                                           "\": one member must broadcast them"))),
           false});
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
    answers.push_back({std::move(waiting->second.sink), std::move(result), with_payload});
    waiting = waiting_.erase(waiting);
  }
}

bool ChunkVersions::NobodyGivesLocked() const {
  if (newest_ != nullptr || waiting_.empty()) return false;
  const std::vector<Member>& members = roster_->newest_epoch()->members;
  return std::all_of(members.begin(), members.end(), [this](const Member& member) {
    return roster_->Find(member.id)->gone || waiting_.contains(member.id);
  });
}

absl::Status ChunkVersions::ApplyLocked(Pending& pending) {
  const bool is_first = newest_ == nullptr;
  // Of two that give the first parameters, or of one that was repeated, one counts.
  if (pending.clock == Round{0} && !is_first) return absl::OkStatus();
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<Slot> slot, pool_.Acquire());
  Closed closed;
  if (is_first) {
    const Seated seated[] = {{0, &pending.contribution}};
    closed = CloseInitial(chunk_, seated, *slot);
  } else {
    SYNCGRADS_ASSIGN_OR_RETURN(closed, UpdateLocked(pending, *slot));
  }
  if (closed.value_bytes == 0) {
    return absl::FailedPreconditionError(absl::StrCat("the initial values of chunk ", ToNumber(id_),
                                                      " of group \"", plan_.spec.name,
                                                      "\" have absent spans"));
  }
  Round& clock = clocks_[pending.member];
  clock = std::max(clock, pending.clock);
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
    Publish(record, *slot);
  }
  record_ = std::move(record);
  newest_ = std::move(slot);
  return absl::OkStatus();
}

absl::StatusOr<Closed> ChunkVersions::UpdateLocked(Pending& pending, Slot& slot) {
  const Optimizer scaled = WithRateFactor(optimizer_, RateFactorLocked(pending.member));
  const Seated seated[] = {{0, &pending.contribution}};
  const bool check_finite = !TakesNonFinite(plan_.spec);
  Closed closed = CloseUpdate(chunk_, scaled, seated, *newest_, slot, check_finite);
  if (closed.finite) return closed;
  SYNCGRADS_RETURN_IF_ERROR(SetAsideNonFiniteLocked(pending));
  return CloseUpdate(chunk_, scaled, seated, *newest_, slot);
}

absl::Status ChunkVersions::SetAsideNonFiniteLocked(Pending& pending) {
  const std::vector<NonFinite> found = FindNonFinite(chunk_, pending.contribution);
  if (found.empty()) return absl::OkStatus();
  const std::string first =
      ToString(plan_, chunk_, pending.clock, roster_->Find(pending.member)->member.name, found[0]);
  const bool refused = plan_.spec.non_finite == OnBad::kReject;
  alerts_->Add(absl::StrCat(first, refused ? ": it is refused" : ": it is left out"));
  if (refused) {
    // Nobody is to wait for it.
    Round& clock = clocks_[pending.member];
    clock = std::max(clock, pending.clock);
    return absl::InvalidArgumentError(first);
  }
  std::vector<uint32_t> left_out;
  for (const NonFinite& one : found) left_out.push_back(one.span);
  pending.contribution = WithoutSpans(chunk_, pending.contribution, left_out);
  const auto waiting = waiting_.find(pending.member);
  if (waiting != waiting_.end()) waiting->second.left_out = std::move(left_out);
  return absl::OkStatus();
}

double ChunkVersions::RateFactorLocked(MemberId member) const {
  const auto read = read_.find(member);
  if (!staleness_.scales_rate || read == read_.end()) return 1;
  const uint64_t others = ToNumber(record_.round) - ToNumber(read->second);
  return 1.0 / static_cast<double>(std::max<uint64_t>(1, others));
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
  return BehindLocked(Round{ToNumber(waiting.clock) - *staleness_.bound});
}

std::shared_ptr<const RoundResult> ChunkVersions::AnswerLocked(MemberId member,
                                                               const Waiting& waiting) {
  if (waiting.clock > Round{0} && roster_->Find(member)->HasEnded(plan_.id, waiting.clock)) {
    const auto [finished, first] = finished_.try_emplace(member, waiting.clock);
    if (waiting.clock > finished->second) {
      return answer_.Refusal(waiting.clock,
                             absl::OutOfRangeError(absl::StrCat(
                                 "group \"", plan_.spec.name, "\" has no step ",
                                 ToNumber(waiting.clock), ": every member has ended or gone")));
    }
  }
  read_[member] = record_.round;
  const Epoch& epoch = *roster_->newest_epoch();
  UpdateHeader header = answer_.HeaderOf(waiting.clock);
  header.epoch = epoch.number;
  // Of this member's own push, which is all that its version is made of.
  header.counts.assign(chunk_.spans.size(), waiting.skip && waiting.clock > Round{0} ? 0 : 1);
  for (uint32_t span : waiting.absent) header.counts[span] = 0;
  for (uint32_t span : waiting.left_out) header.counts[span] = 0;
  header.left_out = waiting.left_out;
  const std::optional<uint32_t> rank = epoch.RankOf(member);
  if (rank.has_value() && !waiting.skip) header.contributors.push_back(*rank);
  return answer_.Result(header, record_.value_bytes, newest_);
}

std::optional<ChunkWait> ChunkVersions::Explain() const {
  MutexLock lock(mutex_);
  std::optional<ChunkWait> wait;
  for (const auto& [member, push] : waiting_) {
    // Who follows waits for the end, and not for anybody.
    if (roster_->Find(member)->HasEnded(plan_.id, push.clock)) continue;
    if (wait.has_value() && push.since >= wait->since) continue;
    std::vector<MemberId> awaited = AwaitedLocked(member, push);
    if (newest_ == nullptr) awaited = BehindLocked(Round{1});
    wait = ChunkWait{push.clock, push.since, std::move(awaited)};
  }
  return wait;
}

Round ChunkVersions::open_round() const {
  MutexLock lock(mutex_);
  if (newest_ == nullptr) return Round{0};
  std::optional<Round> slowest;
  Round fastest{};
  for (const Member& member : roster_->newest_epoch()->members) {
    const Round clock = ClockOfLocked(member.id);
    fastest = std::max(fastest, clock);
    if (!roster_->Find(member.id)->HasData(plan_.id, Next(clock))) continue;
    slowest = std::min(slowest.value_or(clock), clock);
  }
  return Next(slowest.value_or(fastest));
}

}  // namespace syncgrads::server
