#include "client/tuner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/layout.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

constexpr uint32_t kLeastChunkBytes = 64 << 10;

bool IsBetter(absl::Duration step, absl::Duration than) {
  return step < (1 - kTuningMargin) * than;
}

std::string Milliseconds(absl::Duration time) {
  return absl::StrCat(absl::ToDoubleMilliseconds(absl::Trunc(time, absl::Microseconds(10))), " ms");
}

std::string Kibibytes(uint32_t bytes) { return absl::StrCat(bytes >> 10, " KiB"); }

}  // namespace

absl::Duration Median(std::vector<absl::Duration> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

std::string ChunkChoice::ToString() const {
  const std::string usually =
      absl::StrCat(Kibibytes(usual.chunk_bytes), ", the default, takes ", Milliseconds(usual.step));
  if (best.chunk_bytes == usual.chunk_bytes) {
    return absl::StrCat("chunk size: a step in chunks of ", usually, ", and no other was faster");
  }
  return absl::StrCat("chunk size: a step in chunks of ", Kibibytes(best.chunk_bytes), " takes ",
                      Milliseconds(best.step), "; of ", usually);
}

absl::StatusOr<ChunkChoice> ChooseChunks(const TryChunks& try_chunks) {
  ChunkChoice choice;
  SYNCGRADS_ASSIGN_OR_RETURN(choice.usual, try_chunks(0));
  choice.best = choice.usual;
  while (choice.best.chunk_bytes / 2 >= kLeastChunkBytes) {
    SYNCGRADS_ASSIGN_OR_RETURN(const ChunkTrial half, try_chunks(choice.best.chunk_bytes / 2));
    if (!IsBetter(half.step, choice.best.step)) break;
    choice.best = half;
  }
  if (choice.best.chunk_bytes < choice.usual.chunk_bytes) return choice;
  while (choice.best.chunk_bytes <= kMaxChunkBytes / 2) {
    SYNCGRADS_ASSIGN_OR_RETURN(const ChunkTrial twice, try_chunks(choice.best.chunk_bytes * 2));
    if (!IsBetter(twice.step, choice.best.step)) break;
    choice.best = twice;
  }
  return choice;
}

ConnectionTuner::ConnectionTuner(int usual) : candidates_{{usual, {}}} {
  for (int connections : {1, 2, 4}) {
    if (connections != usual) candidates_.push_back({connections, {}});
  }
}

bool ConnectionTuner::StepEnded(absl::Time now) {
  if (done_) return false;
  if (last_.has_value() && step_of_turn_ > 0) {
    candidates_[current_].steps.push_back(now - *last_);
  }
  last_ = now;
  if (++step_of_turn_ < kStepsOfTurn) return false;
  step_of_turn_ = 0;
  if (++current_ == candidates_.size()) {
    current_ = 0;
    if (++turn_ == kTurns) Choose();
  }
  return true;
}

void ConnectionTuner::Choose() {
  done_ = true;
  for (size_t i = 1; i < candidates_.size(); ++i) {
    if (IsBetter(Median(candidates_[i].steps), Median(candidates_[current_].steps))) current_ = i;
  }
}

std::string ConnectionTuner::ToString() const {
  const auto with = [](const Candidate& candidate) {
    return absl::StrCat(candidate.connections, " to each server");
  };
  const Candidate& usual = candidates_.front();
  const std::string usually =
      absl::StrCat(with(usual), ", the default, takes ", Milliseconds(Median(usual.steps)));
  if (current_ == 0) {
    return absl::StrCat("connections: a step with ", usually, ", and no other was faster");
  }
  const Candidate& best = candidates_[current_];
  return absl::StrCat("connections: a step with ", with(best), " takes ",
                      Milliseconds(Median(best.steps)), "; with ", usually);
}

}  // namespace syncgrads::client
