// What ClientOptions::autotune decides by: settings are tried, and another one than
// usual is taken where it has been clearly faster. Here: sizes of chunks, before the
// first step; StepTuner has those of the first steps.

#ifndef SYNCGRADS_CLIENT_TUNER_H_
#define SYNCGRADS_CLIENT_TUNER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncgrads::client {

// How much less time a step has to take for a setting that is not the usual one.
inline constexpr double kTuningMargin = 0.05;

inline bool IsBetter(absl::Duration step, absl::Duration than) {
  return step < (1 - kTuningMargin) * than;
}

absl::Duration Median(std::vector<absl::Duration> times);
// "12.34 ms"
std::string Milliseconds(absl::Duration time);

// Steps in chunks of one size.
struct ChunkTrial {
  uint32_t chunk_bytes = 0;
  absl::Duration step;
};
// Makes some steps in chunks of so many bytes, 0: in as many as the coordinator chooses.
using TryChunks = std::function<absl::StatusOr<ChunkTrial>(uint32_t chunk_bytes)>;

struct ChunkChoice {
  ChunkTrial usual;
  ChunkTrial best;
  // In words.
  std::string ToString() const;
};

// Tries half the usual size and halves it again for as long as that helps, and if it
// does not, doubles it likewise, from 64 KiB to the largest chunk there is. Where all
// workers are told the same times, all choose the same. Errors: as `try_chunks`.
absl::StatusOr<ChunkChoice> ChooseChunks(const TryChunks& try_chunks);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_TUNER_H_
