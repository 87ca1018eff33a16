#include "client/rounds/chunks_in_flight.h"

#include <algorithm>
#include <utility>

namespace syncgrads::client {

void ChunksInFlight::Begin() {
  chunks_.assign(chunks_.size(), ChunkState());
  failures_ = 0;
}

void ChunksInFlight::Send(ChunkId id, bool without_result) {
  ChunkState& chunk = Of(id);
  chunk.state = State::kSent;
  chunk.without_result = without_result;
  chunk.in_use = true;
  ++in_use_;
}

bool ChunksInFlight::IsUnanswered(ChunkId id) const {
  return Of(id).state == State::kSent && !Of(id).answer.has_value();
}

void ChunksInFlight::Accept(ChunkId id, ChunkAnswer answer) { Of(id).answer = std::move(answer); }

std::optional<ChunkAnswer> ChunksInFlight::Release(ChunkId id) {
  ChunkState& chunk = Of(id);
  if (chunk.state != State::kSent || !chunk.answer.has_value()) {
    // The message was dropped without an answer: the chunk has failed or is about to fail.
    StopUsing(chunk);
    return std::nullopt;
  }
  chunk.state = State::kCopying;
  return std::exchange(chunk.answer, std::nullopt);
}

void ChunksInFlight::Complete(ChunkId id) {
  ChunkState& chunk = Of(id);
  chunk.state = State::kDone;
  StopUsing(chunk);
}

void ChunksInFlight::StopUsing(ChunkState& chunk) {
  chunk.in_use = false;
  --in_use_;
}

void ChunksInFlight::Fail(ChunkId id, absl::Status error) {
  ChunkState& chunk = Of(id);
  if (chunk.state != State::kCollecting && chunk.state != State::kSent) return;
  chunk.state = State::kFailed;
  chunk.answer.reset();
  chunk.error = std::move(error);
  ++failures_;
}

void ChunksInFlight::Retry(ChunkId id) {
  Of(id) = ChunkState();
  --failures_;
}

bool ChunksInFlight::IsReportedFailure(ChunkId id) const {
  return Of(id).state == State::kFailed && Of(id).reported;
}

bool ChunksInFlight::IsOver(Range& range) const {
  while (range.count > 0 && chunks_[range.first].state == State::kDone) {
    ++range.first;
    --range.count;
  }
  if (range.count == 0) return true;
  const auto first = chunks_.begin() + range.first;
  return failures_ > 0 && std::any_of(first, first + range.count, [](const ChunkState& chunk) {
           return chunk.state == State::kFailed;
         });
}

absl::Status ChunksInFlight::Outcome(Range range) {
  absl::Status failure;
  bool done = true;
  for (uint32_t c = range.first; c < range.first + range.count; ++c) {
    ChunkState& chunk = chunks_[c];
    if (chunk.state != State::kDone) done = false;
    if (chunk.state != State::kFailed) continue;
    chunk.reported = true;
    failure.Update(chunk.error);
  }
  if (!failure.ok() || done) return failure;
  return absl::UnavailableError("some chunks have no answer yet");
}

absl::Status ChunksInFlight::FirstFailure() const {
  for (const ChunkState& chunk : chunks_) {
    if (chunk.state == State::kFailed) return chunk.error;
  }
  return absl::OkStatus();
}

std::optional<ChunkId> ChunksInFlight::FindCollecting(Range range) const {
  for (uint32_t c = range.first; c < range.first + range.count; ++c) {
    if (chunks_[c].state == State::kCollecting) return ChunkId{c};
  }
  return std::nullopt;
}

std::optional<ChunkId> ChunksInFlight::FindNotDone() const {
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    if (chunks_[c].state != State::kDone) return ChunkId{c};
  }
  return std::nullopt;
}

std::vector<ChunkId> ChunksInFlight::FindSent(Range range) const {
  std::vector<ChunkId> sent;
  for (uint32_t c = range.first; c < range.first + range.count; ++c) {
    if (chunks_[c].state == State::kSent) sent.push_back(ChunkId{c});
  }
  return sent;
}

bool ChunksInFlight::has_under_way() const {
  return std::any_of(chunks_.begin(), chunks_.end(), [](const ChunkState& chunk) {
    return chunk.state == State::kSent || chunk.state == State::kCopying;
  });
}

}  // namespace syncgrads::client
