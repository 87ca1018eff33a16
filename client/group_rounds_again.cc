// How a round of GroupRounds is looked back on, and given up.

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/group_rounds.h"

namespace syncgrads::client {

GroupRounds::Closing GroupRounds::FindClosing() const {
  MutexLock lock(mutex_);
  Closing closing;
  std::set<uint32_t> all;
  for (const ChunkRound& chunk : chunks_) {
    closing.epoch = std::max(closing.epoch, chunk.epoch);
    all.insert(chunk.contributors.begin(), chunk.contributors.end());
  }
  closing.contributors.assign(all.begin(), all.end());
  closing.whole = std::all_of(chunks_.begin(), chunks_.end(), [&](const ChunkRound& chunk) {
    return chunk.contributors == closing.contributors;
  });
  return closing;
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
