#include "client/rounds/group_rounds.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/rounds/chunk_answer.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"

namespace syncgrads::client {

GroupRounds::GroupRounds(std::shared_ptr<const GroupPlan> plan, Identity identity,
                         const std::atomic<uint64_t>& epoch, Outbox& outbox)
    : plan_(std::move(plan)),
      generation_(identity.generation),
      member_(identity.member),
      epoch_(epoch),
      outbox_(outbox),
      compressor_(*plan_),
      sender_(*plan_, compressor_, outbox),
      first_server_(plan_->servers[ToNumber(identity.member) % plan_->servers.size()]),
      collector_(*plan_, identity),
      chunks_(plan_->layout.chunks().size()),
      results_(*plan_) {}

std::string GroupRounds::StepLocked() const {
  return absl::StrCat("step ", ToNumber(collector_.round()), " of group \"", plan_->spec.name,
                      "\"");
}

void GroupRounds::BeginRoundLocked(Round round) {
  collector_.Begin(round);
  chunks_.Begin();
  unreported_.clear();
  for (uint32_t c = 0; c < plan_->layout.chunks().size(); ++c) compressor_.Discard(ChunkId{c});
}

absl::Status GroupRounds::CheckPush(TensorId tensor, absl::Span<const std::byte> values) const {
  MutexLock lock(mutex_);
  SYNCGRADS_RETURN_IF_ERROR(collector_.CheckArguments(tensor, values));
  if (!failure_.ok()) return failure_;
  return collector_.CheckAwaited(tensor, /*has_values=*/true);
}

absl::Status GroupRounds::Contribute(TensorId tensor,
                                     std::optional<absl::Span<const std::byte>> values,
                                     Destination result) {
  std::vector<Departure> departures;
  {
    MutexLock lock(mutex_);
    SYNCGRADS_RETURN_IF_ERROR(collector_.CheckArguments(tensor, values));
    if (!failure_.ok()) return failure_;
    SYNCGRADS_RETURN_IF_ERROR(collector_.Collect(tensor, values, result));
    const Chunks range = plan_->layout.ChunksOf(tensor);
    unreported_.push_back({tensor, range});
    for (uint32_t c = range.first; c < range.first + range.count; ++c) {
      if (collector_.IsComplete(ChunkId{c})) departures.push_back(DepartLocked(ChunkId{c}));
    }
  }
  BeginWithAnother(departures);
  for (Departure& departure : departures) Send(std::move(departure));
  return absl::OkStatus();
}

GroupRounds::Departure GroupRounds::DepartLocked(ChunkId chunk) {
  Departure departure;
  departure.contribution = collector_.ContributionTo(chunk, epoch_.load());
  departure.returned = results_.Clear(chunk);
  chunks_.Send(chunk, departure.contribution.header.without_result);
  return departure;
}

void GroupRounds::BeginWithAnother(std::vector<Departure>& departures) const {
  const auto begin =
      std::find_if(departures.begin(), departures.end(), [this](const Departure& departure) {
        return plan_->servers[ToNumber(departure.contribution.header.chunk)] == first_server_;
      });
  if (begin != departures.end()) std::rotate(departures.begin(), begin, departures.end());
}

void GroupRounds::Send(Departure departure) {
  const ChunkId chunk = departure.contribution.header.chunk;
  const TraceSpan span(kTracePush, TraceArgs::Of(departure.contribution.header.round, /*job=*/0,
                                                 plan_->id, chunk, member_));
  sender_.Send(std::move(departure.contribution),
               [self = shared_from_this(), chunk] { self->OnReleased(chunk); });
}

absl::Status GroupRounds::OnUpdate(const UpdateFrame& update, std::shared_ptr<const void> memory) {
  SYNCGRADS_RETURN_IF_ERROR(CheckPayload(*plan_, update, compressor_));
  const ChunkId chunk = update.header.chunk;
  MutexLock lock(mutex_);
  if (update.header.round != collector_.round() || !chunks_.IsUnanswered(chunk)) {
    return absl::OkStatus();
  }
  SYNCGRADS_RETURN_IF_ERROR(
      CheckAnswer(*plan_, generation_, update, chunks_.is_without_result(chunk), compressor_));
  absl::Status error = update.header.error;
  if (error.ok() && std::holds_alternative<Gather>(plan_->spec.rule)) {
    error = collector_.CheckRoom(update);
  }
  if (error.ok() && !chunks_.is_in_use(chunk)) {
    error = absl::InternalError("the answer arrived after the buffers were released");
  }
  if (error.ok()) {
    chunks_.Accept(chunk, {update, std::move(memory)});
  } else {
    chunks_.Fail(chunk, std::move(error));
    NotifyLocked();
  }
  return absl::OkStatus();
}

void GroupRounds::OnReleased(ChunkId chunk) {
  std::optional<ChunkAnswer> answer;
  std::vector<Target> targets;
  bool in_place = false;
  bool stays = false;
  bool uncompressed = false;
  {
    MutexLock lock(mutex_);
    answer = chunks_.Release(chunk);
    if (!answer.has_value()) {
      NotifyLocked();
      return;
    }
    if (!chunks_.is_without_result(chunk)) targets = collector_.TargetsOf(answer->update);
    in_place = collector_.IsInPlace(chunk);
    stays = collector_.StaysInPlace(answer->update);
    uncompressed = collector_.is_uncompressed();
  }
  const TraceSpan span(kTraceResult, TraceArgs::Of(answer->update.header.round, /*job=*/0,
                                                   plan_->id, chunk, member_));
  // What ServerLink has put there.
  std::shared_ptr<const MappedResults> mapped;
  if (answer->update.header.shared.has_value()) {
    mapped = std::static_pointer_cast<const MappedResults>(answer->memory);
  }
  // The round, and with it the chunk's state, cannot change until the chunk is complete. The
  // received buffers are freed before the waiting caller is woken.
  Unpack(plan_->layout.chunk(chunk), targets, stays, compressor_, *answer);
  if (!awaits_outcome()) compressor_.Commit(chunk);
  if (!uncompressed) {
    const std::string notice = compressor_.Received(chunk, answer->update.header.codec);
    if (!notice.empty()) outbox_.OnCodecReplaced(notice);
  }
  MutexLock lock(mutex_);
  if (mapped != answer->memory) mapped = nullptr;  // Unpack has made a copy
  if (in_place && !stays && !targets.empty()) {
    results_.SetCopied(std::move(answer->update), std::move(targets));
  } else {
    results_.Set(std::move(answer->update), in_place, std::move(answer->memory), std::move(mapped));
  }
  chunks_.Complete(chunk);
  NotifyLocked();
}

void GroupRounds::NotifyLocked() {
  changed_.NotifyAll();
  // A step has many chunks. A thread that waits for all of them is woken once.
  for (Chunks* chunks : awaited_) {
    if (!chunks_.IsOver(*chunks)) continue;
    over_.NotifyAll();
    return;
  }
}

absl::Status GroupRounds::CheckSent(Chunks chunks) const {
  MutexLock lock(mutex_);
  const std::optional<ChunkId> chunk = chunks_.FindCollecting(chunks);
  if (!chunk.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("tensor \"", collector_.FindAwaited(*chunk).name,
                   "\" has not been pushed or skipped in ", StepLocked(), ": chunk ",
                   ToNumber(*chunk), ", which has a part of this tensor, has not been sent"));
}

bool GroupRounds::Await(Chunks chunks, absl::Time deadline) const {
  const TraceSpan span("await results");
  MutexLock lock(mutex_);
  if (chunks_.IsOver(chunks)) return true;
  awaited_.push_back(&chunks);
  bool is_over = false;
  for (bool in_time = true; in_time && !is_over;) {
    in_time = over_.WaitUntil(mutex_, deadline);
    is_over = chunks_.IsOver(chunks);
  }
  awaited_.erase(std::find(awaited_.begin(), awaited_.end(), &chunks));
  return is_over;
}

absl::StatusOr<TensorId> GroupRounds::AwaitNext(absl::Time deadline) {
  MutexLock lock(mutex_);
  for (bool in_time = true;; in_time = AwaitChangeLocked(deadline)) {
    for (auto next = unreported_.begin(); next != unreported_.end(); ++next) {
      if (!chunks_.IsOver(next->chunks)) continue;
      const TensorId tensor = next->tensor;
      unreported_.erase(next);
      return tensor;
    }
    if (unreported_.empty()) {
      return absl::NotFoundError(
          absl::StrCat("no tensor of ", StepLocked(), " is waiting for its result"));
    }
    if (!in_time || deadline == absl::InfinitePast()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "none of ", unreported_.size(), " tensors of ", StepLocked(), " has its result"));
    }
  }
}

bool GroupRounds::AwaitChangeLocked(absl::Time deadline) {
  ++awaiting_next_;
  const bool in_time = changed_.WaitUntil(mutex_, deadline);
  --awaiting_next_;
  return in_time;
}

GroupRounds::Unanswered GroupRounds::FindUnanswered(Chunks chunks) const {
  std::vector<ChunkId> sent;
  {
    MutexLock lock(mutex_);
    sent = chunks_.FindSent(chunks);
  }
  Unanswered unanswered;
  unanswered.chunks = sent.size();
  std::vector<ServerIndex>& servers = unanswered.servers;
  for (ChunkId chunk : sent) servers.push_back(plan_->servers[ToNumber(chunk)]);
  std::sort(servers.begin(), servers.end());
  servers.erase(std::unique(servers.begin(), servers.end()), servers.end());
  return unanswered;
}

absl::Status GroupRounds::SendRefusedAgain(Chunks chunks, absl::Time deadline) {
  std::vector<Departure> departures;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    for (uint32_t c = chunks.first; c < chunks.first + chunks.count; ++c) {
      const ChunkId chunk{c};
      if (!chunks_.IsReportedFailure(chunk)) continue;
      bool in_time = true;
      while (failure_.ok() && chunks_.is_in_use(chunk) && in_time) {
        in_time = changed_.WaitUntil(mutex_, deadline);
      }
      if (!failure_.ok()) break;
      if (chunks_.is_in_use(chunk)) {
        status = absl::DeadlineExceededError(absl::StrCat("chunk ", c, " of ", StepLocked(),
                                                          " was refused, but is still being sent"));
        break;
      }
      chunks_.Retry(chunk);
      // The retry is encoded with the same residual as the refused contribution.
      compressor_.Discard(chunk);
      departures.push_back(DepartLocked(chunk));
    }
  }
  // Also after an error: these chunks count as sent.
  for (Departure& departure : departures) Send(std::move(departure));
  return status;
}

bool GroupRounds::awaits_outcome() const {
  return std::holds_alternative<Quorum>(plan_->spec.policy) && !plan_->spec.compression.empty();
}

void GroupRounds::KeepResiduals(
    absl::FunctionRef<std::optional<uint32_t>(uint64_t epoch)> rank_in) {
  const uint32_t chunks = static_cast<uint32_t>(plan_->layout.chunks().size());
  // Usually one epoch. All chunks are done, and stay done until EndRound.
  std::map<uint64_t, std::optional<uint32_t>> ranks;
  {
    MutexLock lock(mutex_);
    for (uint32_t c = 0; c < chunks; ++c) ranks.try_emplace(results_.EpochOf(ChunkId{c}));
  }
  for (auto& [epoch, rank] : ranks) rank = rank_in(epoch);
  MutexLock lock(mutex_);
  for (uint32_t c = 0; c < chunks; ++c) {
    const std::optional<uint32_t> rank = ranks.at(results_.EpochOf(ChunkId{c}));
    if (rank.has_value() && results_.HasContributor(ChunkId{c}, *rank)) {
      compressor_.Commit(ChunkId{c});
    }
  }
}

absl::Status GroupRounds::EndRound() {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (const std::optional<ChunkId> chunk = chunks_.FindNotDone(); chunk.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("chunk ", ToNumber(*chunk), " of ", StepLocked(), " has no result"));
  }
  BeginRoundLocked(Next(collector_.round()));
  return absl::OkStatus();
}

absl::Status GroupRounds::Overtake(Round round, absl::Time deadline) {
  std::vector<Destination> results;
  {
    MutexLock lock(mutex_);
    results = collector_.Results();
  }
  SYNCGRADS_RETURN_IF_ERROR(BeginAgain(round, deadline));
  for (uint32_t t = 0; t < results.size(); ++t) {
    SYNCGRADS_RETURN_IF_ERROR(Skip(TensorId{t}, results[t]));
  }
  return absl::OkStatus();
}

bool GroupRounds::AwaitAnswered(absl::Time deadline) {
  MutexLock lock(mutex_);
  while (chunks_.has_under_way()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return !chunks_.has_under_way();
  }
  return true;
}

absl::Status GroupRounds::BeginAgain(Round round, absl::Time deadline) {
  std::vector<ChunkId> given_up;
  Round current;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    current = collector_.round();
    given_up = chunks_.FindSent(chunks_.all());
  }
  Forget(given_up, current);
  MutexLock lock(mutex_);
  if (!AwaitReleasedLocked(deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat(StepLocked(), " was abandoned, but its buffers are still being sent"));
  }
  if (!failure_.ok()) return failure_;
  BeginRoundLocked(round);
  return absl::OkStatus();
}

absl::Status GroupRounds::CheckIdle() const {
  MutexLock lock(mutex_);
  // A step that cannot complete any more, or that is complete, does not prevent this worker from
  // leaving.
  if (collector_.collected() == 0 || chunks_.has_failed() || !chunks_.FindNotDone().has_value()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(StepLocked(), " is in progress: call WaitStep first"));
}

std::optional<Round> GroupRounds::Progress() const {
  MutexLock lock(mutex_);
  const Round round = collector_.round();
  const bool waits = !awaited_.empty() || awaiting_next_ > 0;
  if (collector_.is_complete() || (collector_.collected() > 0 && waits)) {
    if (!chunks_.has_failed()) return round;
  }
  if (round == Round{0}) return std::nullopt;
  return Previous(round);
}

void GroupRounds::Forget(const std::vector<ChunkId>& chunks, Round round) {
  for (ChunkId chunk : chunks) {
    outbox_.Forget(plan_->servers[ToNumber(chunk)], {plan_->id, chunk, round});
  }
}

void GroupRounds::Fail(absl::Status status) {
  std::vector<ChunkId> given_up;
  Round round;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
    round = collector_.round();
    given_up = chunks_.FindSent(chunks_.all());
    for (uint32_t c = 0; c < chunks_.all().count; ++c) chunks_.Fail(ChunkId{c}, status);
    NotifyLocked();
  }
  Forget(given_up, round);
}

bool GroupRounds::AwaitReleasedLocked(absl::Time deadline) {
  while (chunks_.in_use() > 0) {
    if (!changed_.WaitUntil(mutex_, deadline)) return chunks_.in_use() == 0;
  }
  return true;
}

}  // namespace syncgrads::client
