#include "server/core/jobs/served_group.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "server/core/closing/closing.h"
#include "server/core/closing/contribution.h"
#include "server/core/rounds/chunk_rounds.h"
#include "server/core/rounds/chunk_versions.h"
#include "server/core/rounds/unread_bytes.h"

namespace syncgrads::server {
namespace {

// To look at fewer chunks takes no longer than a millisecond or two.
constexpr size_t kVeryManyChunks = 10'000;

}  // namespace

ServedGroup::ServedGroup(const Dependencies& dependencies, std::shared_ptr<const GroupPlan> plan,
                         uint64_t results_key, absl::StatusOr<GroupResults> results,
                         std::shared_ptr<const CurrentRoster> roster)
    : dependencies_(dependencies),
      plan_(std::move(plan)),
      results_key_(results_key),
      results_(std::move(results)),
      roster_(std::move(roster)),
      chunks_progress_(dependencies.clock) {
  const ToCoordinator* const to_coordinator = dependencies_.to_coordinator;
  if (to_coordinator != nullptr && std::holds_alternative<Quorum>(plan_->spec.policy)) {
    arrivals_ = std::make_unique<Arrivals>(
        Arrival{dependencies_.job, dependencies_.generation, plan_->id, {}, {}},
        to_coordinator->arrivals);
  }
  const std::shared_ptr<const Roster> newest = roster_->Get().roster;
  const Epoch* const epoch = newest->newest_epoch();
  bytes_of_results_ = results_.ok() ? BytesOfResults(*plan_, dependencies_.self,
                                                     epoch == nullptr ? 1 : epoch->members.size())
                                    : 0;
  size_t position = 0;  // index among the chunks of this server
  for (uint32_t c = 0; c < plan_->servers.size(); ++c) {
    const bool here = plan_->servers[c] == dependencies_.self && results_.ok();
    chunks_.push_back(here ? MakeChunk(ChunkId{c}, position) : nullptr);
    if (!here) continue;
    chunks_.back()->ReportWaits(&waits_);
    chunks_.back()->CountIn(&counts_, /*is_first=*/position == 0);
    chunks_.back()->TraceAs(TraceJob(dependencies_.job));
    ++position;
    bytes_of_chunks_ += plan_->layout.chunk(ChunkId{c}).bytes();
  }
  if (arrivals_ != nullptr) arrivals_->SetChunks(position);
}

std::unique_ptr<ServedChunk> ServedGroup::MakeChunk(ChunkId chunk, size_t position) const {
  if (std::holds_alternative<Staleness>(plan_->spec.policy)) {
    return std::make_unique<ChunkVersions>(*plan_, chunk, dependencies_.generation, *roster_,
                                           dependencies_.clock, results_->source, position,
                                           dependencies_.alerts);
  }
  std::function<void(ReducedChunk)> report_reduced;
  if (dependencies_.to_coordinator != nullptr) {
    // The chunk does not outlive this group.
    report_reduced = [this](ReducedChunk reduced) {
      reduced.job = dependencies_.job;
      dependencies_.to_coordinator->reduced.Send(reduced);
    };
  }
  return std::make_unique<ChunkRounds>(
      *plan_, chunk, dependencies_.generation, *roster_, dependencies_.clock, results_->source,
      position, dependencies_.alerts, arrivals_.get(), std::move(report_reduced));
}

std::shared_ptr<SlotSource> ServedGroup::shared_results() const {
  return results_.ok() && results_->shared ? results_->source : nullptr;
}

size_t ServedGroup::UnreadBytes(size_t members) const {
  size_t bytes = 0;
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    if (chunks_[c] == nullptr) continue;
    bytes +=
        ResultBytes(plan_->layout.chunk(ChunkId{c}), plan_->spec.rule, members) + kUnreadOverhead;
  }
  return bytes;
}

absl::StatusOr<ServedChunk*> ServedGroup::Route(const PushHeader& header,
                                                const Payload& payload) const {
  const size_t c = ToNumber(header.chunk);
  if (c >= chunks_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group \"", plan_->spec.name, "\" has ", chunks_.size(), " chunks; there is no chunk ", c));
  }
  if (!results_.ok()) return results_.status();
  if (chunks_[c] == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", c, " of group \"", plan_->spec.name,
                                                   "\" is on server ", ToNumber(plan_->servers[c]),
                                                   ", not on ", ToNumber(dependencies_.self)));
  }
  std::string sender = absl::StrCat("member ", ToNumber(header.member));
  SYNCGRADS_RETURN_IF_ERROR(CheckPush(*plan_, header, payload.pieces, sender));
  return chunks_[c].get();
}

absl::Status ServedGroup::Push(const PushHeader& header, Payload payload,
                               const std::shared_ptr<AnswerSink>& sink) {
  SYNCGRADS_ASSIGN_OR_RETURN(ServedChunk* const chunk, Route(header, payload));
  Finish(*chunk, chunk->Seat(header, std::move(payload), sink));
  return absl::OkStatus();
}

void ServedGroup::Finish(ServedChunk& chunk, CloseWork work) {
  if (dependencies_.closers == nullptr) return chunk.Finish(work);
  // At most one round is closed here. The next one, if it is complete by then, takes its turn.
  if (work == CloseWork::kLittle) work = chunk.Close();
  if (work == CloseWork::kNone) return;
  dependencies_.closers->Run(dependencies_.job, [self = shared_from_this(), &chunk] {
    self->Finish(chunk, chunk.Close());
  });
}

void ServedGroup::TakeRoster() {
  if (pass_.Begin()) PassRoster(0);
}

void ServedGroup::PassRoster(size_t first) {
  const auto visit = [self = shared_from_this(), first] {
    const std::optional<size_t> next = self->pass_.Visit(
        self->chunks_, first,
        [&self](ServedChunk& chunk, CloseWork work) { self->Finish(chunk, work); });
    if (next.has_value()) self->PassRoster(*next);
  };
  if (dependencies_.closers == nullptr) return visit();
  dependencies_.closers->Run(dependencies_.job, visit);
}

void ServedGroup::Fix(const QuorumSet& set) {
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk != nullptr) Finish(*chunk, chunk->Fix(set.round, set.members));
  }
}

void ServedGroup::SetNorms(const StepNorms& norms) {
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk != nullptr) Finish(*chunk, chunk->SetNorms(norms));
  }
}

Round ServedGroup::Hold() {
  Round first = FirstRound(plan_->spec.rule);
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk != nullptr) first = std::max(first, chunk->Hold());
  }
  return first;
}

void ServedGroup::EndHold() {
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk != nullptr) Finish(*chunk, chunk->EndHold());
  }
}

void ServedGroup::ForgetUnless(const Roster& roster) {
  if (arrivals_ != nullptr) arrivals_->ForgetUnless(roster);
}

absl::StatusOr<std::vector<std::shared_ptr<const RoundResult>>> ServedGroup::HoldRound(
    Round round) const {
  std::vector<std::shared_ptr<const RoundResult>> results;
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk == nullptr) continue;
    results.push_back(chunk->Kept(round));
    if (results.back() != nullptr) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the result of round ", ToNumber(round), " of group \"", plan_->spec.name,
                     "\" is not kept; round ", ToNumber(chunk->open_round()), " is open"));
  }
  return results;
}

std::vector<RoundWait> ServedGroup::Explain(const Roster& roster, const PresenceTable& presences,
                                            absl::string_view held_for, absl::Time now,
                                            ExplainBudget& budget) const {
  return ExplainRounds(*plan_, chunks_, roster, presences, held_for, now, budget);
}

std::optional<absl::Time> ServedGroup::OldestWait() {
  if (!waits_.MayWait()) return std::nullopt;
  absl::Time oldest = absl::InfiniteFuture();
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk != nullptr) oldest = std::min(oldest, chunk->waiting_since());
  }
  if (oldest != absl::InfiniteFuture()) return oldest;
  waits_.NoneFound();
  return std::nullopt;
}

std::vector<Arrival> ServedGroup::NewestArrivals() const {
  return arrivals_ == nullptr ? std::vector<Arrival>() : arrivals_->Newest();
}

std::vector<ReducedChunk> ServedGroup::Reduced() const {
  std::vector<ReducedChunk> all;
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk == nullptr) continue;
    std::optional<ReducedChunk> reduced = chunk->Reduced();
    if (!reduced.has_value()) continue;
    reduced->job = dependencies_.job;
    all.push_back(*std::move(reduced));
  }
  return all;
}

ServedGroup::ChunksProgress ServedGroup::LookAtChunks() const {
  ChunksProgress all;
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk == nullptr) continue;
    ++all.chunks;
    all.open = std::min(all.open, chunk->open_round());
    all.late_contributions = std::max(all.late_contributions, chunk->late_contributions());
    const absl::Time since = chunk->waiting_since();
    if (since == absl::InfiniteFuture()) continue;
    ++all.open_chunks;
    all.oldest_since = std::min(all.oldest_since, since);
  }
  if (all.chunks == 0) all.open = FirstRound(plan_->spec.rule);
  return all;
}

GroupProgress ServedGroup::Progress() const {
  const ChunksProgress all = chunks_.size() < kVeryManyChunks
                                 ? LookAtChunks()
                                 : *chunks_progress_.Get([this] { return LookAtChunks(); });
  GroupProgress progress{plan_->id, plan_->spec.name, all.chunks, all.open};
  progress.late_contributions = all.late_contributions;
  progress.open_chunks = all.open_chunks;
  const absl::Time now = dependencies_.clock.Now();
  progress.oldest_open = std::max(absl::ZeroDuration(), now - all.oldest_since);
  progress.rounds_closed = counts_.rounds_closed();
  if (progress.rounds_closed > 0) {
    progress.since_last_round = std::max(absl::ZeroDuration(), now - counts_.last_closed());
  }
  progress.round_duration = counts_.round_duration();
  progress.contributors = counts_.Contributors();
  progress.rounds_per_second = counts_.rounds_per_second(now);
  if (std::holds_alternative<Staleness>(plan_->spec.policy) && !progress.contributors.empty()) {
    progress.rounds_per_second /= static_cast<double>(progress.contributors.size());
  }
  return progress;
}

uint64_t ServedGroup::MemoryBytes(size_t members) const {
  // With the policy First, a round closes with its first contribution.
  const uint64_t contributors = std::holds_alternative<First>(plan_->spec.policy) ? 1 : members;
  return bytes_of_results_ + contributors * bytes_of_chunks_;
}

bool ServedGroup::HasClosed(Round round) const {
  const auto first = std::find_if(chunks_.begin(), chunks_.end(),
                                  [](const auto& chunk) { return chunk != nullptr; });
  return first != chunks_.end() && (*first)->open_round() > round;
}

std::optional<Round> ServedGroup::NewestOpenRound() const {
  std::optional<Round> newest;
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk != nullptr) newest = std::max(newest.value_or(Round{}), chunk->open_round());
  }
  return newest;
}

std::optional<Round> ServedGroup::OldestNeededRound() const {
  // Under bounded staleness, pushes have clocks; their rounds belong to no epoch.
  if (std::holds_alternative<Staleness>(plan_->spec.policy)) return std::nullopt;
  std::optional<Round> oldest;
  for (const std::unique_ptr<ServedChunk>& chunk : chunks_) {
    if (chunk == nullptr) continue;
    oldest = std::min(oldest.value_or(chunk->open_round()), chunk->open_round());
  }
  // The coordinator decides the rounds of such groups wherever the chunks are, so epochs are kept
  // even if this server has no chunk.
  const bool is_decided =
      std::holds_alternative<Quorum>(plan_->spec.policy) || NeedsNorms(plan_->spec);
  if (!oldest.has_value() && is_decided) return Round{};
  return oldest;
}

}  // namespace syncgrads::server
