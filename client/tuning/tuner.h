// How ClientOptions::autotune decides: settings are tried, and a setting replaces the default if it
// is clearly faster. This file chooses the chunk size before the first step; StepTuner chooses
// settings in the first steps.

#ifndef SYNCGRADS_CLIENT_TUNING_TUNER_H_
#define SYNCGRADS_CLIENT_TUNING_TUNER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncgrads::client {

// A setting replaces the default if it makes a step faster by more than this part.
inline constexpr double kTuningMargin = 0.05;

inline bool IsBetter(absl::Duration step, absl::Duration than) {
  return step < (1 - kTuningMargin) * than;
}

absl::Duration Median(std::vector<absl::Duration> times);
// Formats a time as in "12.34 ms".
std::string Milliseconds(absl::Duration time);

// The result of a trial: the chunk size, and the median time of a step.
struct ChunkTrial {
  uint32_t chunk_bytes = 0;
  absl::Duration step;
};
// Makes some steps with this chunk size. 0: the coordinator chooses the size.
using TryChunks = std::function<absl::StatusOr<ChunkTrial>(uint32_t chunk_bytes)>;

struct ChunkChoice {
  ChunkTrial usual;
  ChunkTrial best;
  // Describes the choice in a sentence for people.
  std::string ToString() const;
};

// Chooses a chunk size between 64 KiB and the largest one. Tries half of the default size, and
// halves it again for as long as steps get faster. If the first half is not faster, it doubles the
// size in the same way. If `try_chunks` returns the same times on all workers, all make the same
// choice. Errors: those of `try_chunks`.
absl::StatusOr<ChunkChoice> ChooseChunks(const TryChunks& try_chunks);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_TUNING_TUNER_H_
