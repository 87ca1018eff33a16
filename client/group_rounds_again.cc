// How a round of GroupRounds is looked back on, and given up.

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/group_rounds.h"
#include "common/status_macros.h"

namespace syncgrads::client {

GroupRounds::Closing GroupRounds::FindClosing() const {
  MutexLock lock(mutex_);
  Closing closing;
  closing.contributors = chunks_.front().contributors;
  for (const ChunkRound& chunk : chunks_) {
    closing.epoch = std::max(closing.epoch, chunk.epoch);
    if (chunk.contributors == closing.contributors) continue;
    closing.whole = false;
    std::vector<uint32_t> all;
    std::set_union(chunk.contributors.begin(), chunk.contributors.end(),
                   closing.contributors.begin(), closing.contributors.end(),
                   std::back_inserter(all));
    closing.contributors = std::move(all);
  }
  if (closing.whole) return closing;
  for (const ChunkRound& chunk : chunks_) closing.parts.push_back(chunk.contributors);
  return closing;
}

bool GroupRounds::awaits_outcome() const {
  return std::holds_alternative<Quorum>(plan_->spec.policy) && !plan_->spec.compression.empty();
}

void GroupRounds::KeepResiduals(
    absl::FunctionRef<std::optional<uint32_t>(uint64_t epoch)> rank_in) {
  // Almost always one. All chunks are done, and stay so until EndRound.
  std::map<uint64_t, std::optional<uint32_t>> ranks;
  {
    MutexLock lock(mutex_);
    for (const ChunkRound& chunk : chunks_) ranks.try_emplace(chunk.epoch);
  }
  for (auto& [epoch, rank] : ranks) rank = rank_in(epoch);
  MutexLock lock(mutex_);
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    const std::optional<uint32_t> rank = ranks.at(chunks_[c].epoch);
    if (rank.has_value() &&
        std::binary_search(chunks_[c].contributors.begin(), chunks_[c].contributors.end(), *rank)) {
      compressor_.Commit(ChunkId{c});
    }
  }
}

absl::Status GroupRounds::Refusal() const {
  MutexLock lock(mutex_);
  for (const ChunkRound& chunk : chunks_) {
    if (chunk.state == ChunkState::kFailed) return chunk.error;
  }
  return absl::OkStatus();
}

absl::Status GroupRounds::SendRefusedAgain(Chunks chunks, absl::Time deadline) {
  std::vector<Departure> departures;
  {
    MutexLock lock(mutex_);
    for (uint32_t c = chunks.first; c < chunks.first + chunks.count; ++c) {
      if (!failure_.ok()) break;
      if (chunks_[c].state != ChunkState::kFailed || !chunks_[c].said) continue;
      while (chunks_[c].in_use) {
        if (changed_.WaitUntil(mutex_, deadline) || !chunks_[c].in_use) continue;
        return absl::DeadlineExceededError(absl::StrCat("chunk ", c, " of step ", ToNumber(round_),
                                                        " of group \"", plan_->spec.name,
                                                        "\" was refused, and is still being sent"));
      }
      chunks_[c] = ChunkRound();
      --failures_;
      // It is encoded from the same residual.
      compressor_.Discard(ChunkId{c});
      departures.push_back(CompleteLocked(c));
    }
  }
  for (Departure& departure : departures) Depart(std::move(departure));
  return absl::OkStatus();
}

Round GroupRounds::FindNewestClosed() const {
  MutexLock lock(mutex_);
  Round newest = round_;
  for (const ChunkRound& chunk : chunks_) newest = std::max(newest, chunk.newest);
  return newest;
}

absl::Status GroupRounds::Overtake(Round round, absl::Time deadline) {
  std::vector<Destination> results;
  {
    MutexLock lock(mutex_);
    for (const TensorRound& tensor : tensors_) results.push_back(tensor.result);
  }
  SYNCGRADS_RETURN_IF_ERROR(BeginAgain(round, deadline));
  for (uint32_t t = 0; t < results.size(); ++t) {
    SYNCGRADS_RETURN_IF_ERROR(Skip(TensorId{t}, results[t]));
  }
  return absl::OkStatus();
}

void GroupRounds::PinEpoch(uint64_t number) {
  MutexLock lock(mutex_);
  pinned_epoch_ = number;
}

std::optional<uint64_t> GroupRounds::pinned_epoch() const {
  MutexLock lock(mutex_);
  return pinned_epoch_;
}

bool GroupRounds::AwaitAnswered(absl::Time deadline) {
  MutexLock lock(mutex_);
  const auto under_way = [](const ChunkRound& chunk) {
    return chunk.state == ChunkState::kSent || chunk.state == ChunkState::kCopying;
  };
  while (std::any_of(chunks_.begin(), chunks_.end(), under_way)) {
    if (changed_.WaitUntil(mutex_, deadline)) continue;
    return std::none_of(chunks_.begin(), chunks_.end(), under_way);
  }
  return true;
}

absl::Status GroupRounds::BeginAgain(Round round, absl::Time deadline) {
  std::vector<uint32_t> forgotten;
  Round given_up;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    given_up = round_;
    for (uint32_t c = 0; c < chunks_.size(); ++c) {
      if (chunks_[c].state == ChunkState::kSent) forgotten.push_back(c);
    }
  }
  ForgetAll(forgotten, given_up);
  if (!AwaitReleased(deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat("step ", ToNumber(given_up), " of group \"", plan_->spec.name,
                     "\" was given up, and its buffers are still being sent"));
  }
  MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  round_ = round;
  BeginRoundLocked();
  return absl::OkStatus();
}

}  // namespace syncgrads::client
