// What ClientOptions::autotune decides by: settings are tried, and another one than
// usual is taken where it has been clearly faster.

#ifndef SYNCGRADS_CLIENT_TUNER_H_
#define SYNCGRADS_CLIENT_TUNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncgrads::client {

// How much less time a step has to take for a setting that is not the usual one.
inline constexpr double kTuningMargin = 0.05;

absl::Duration Median(std::vector<absl::Duration> times);

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

// Chooses the number of connections to each server in the first steps of a run: each
// number takes its turn for a few steps, several times, so that what else the machine
// does hits all alike. The first step of a turn, which may have connections to make, is
// not counted.
//
// Not thread-safe.
class ConnectionTuner {
 public:
  static constexpr int kTurns = 3;
  static constexpr int kStepsOfTurn = 6;

  // `usual` comes first.
  explicit ConnectionTuner(int usual);

  // How many connections the step under way is to use; those chosen, in the end.
  int connections() const { return candidates_[current_].connections; }
  // A step has ended. True: connections() has changed, or the tuner is done.
  bool StepEnded(absl::Time now);
  bool done() const { return done_; }
  // Once it is done, in words.
  std::string ToString() const;

 private:
  struct Candidate {
    int connections;
    std::vector<absl::Duration> steps;
  };

  void Choose();

  std::vector<Candidate> candidates_;
  size_t current_ = 0;
  int turn_ = 0;
  int step_of_turn_ = 0;
  std::optional<absl::Time> last_;
  bool done_ = false;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_TUNER_H_
