// The contributions of one round on their way: for each chunk, whether its contribution has been
// sent, answered, and released.
//
//   collecting ──Send──▶ sent ──Accept, then Release──▶ copying ──Complete──▶ done
//       │                 │
//       └─────Fail────────┴──Fail──▶ failed ──Retry──▶ collecting
//
// "Released" means that nobody reads the contribution's memory any more. The answer is copied to
// the callers' buffers only then. The reason is that a result may alias its input, and the
// transport of a broken connection may still be reading the input.

#ifndef SYNCGRADS_CLIENT_ROUNDS_CHUNKS_IN_FLIGHT_H_
#define SYNCGRADS_CLIENT_ROUNDS_CHUNKS_IN_FLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "client/rounds/chunk_answer.h"
#include "common/group/layout.h"
#include "common/ids.h"

namespace syncgrads::client {

// Owned by GroupRounds, which calls it with its lock held. Thread-compatible.
class ChunksInFlight {
 public:
  using Range = Layout::ChunkRange;

  explicit ChunksInFlight(size_t chunks) : chunks_(chunks) {}

  Range all() const { return {0, static_cast<uint32_t>(chunks_.size())}; }

  // Begins a round: all chunks are collecting. No chunk may be in use.
  void Begin();

  // The chunk's contribution is sent. It is in use until it has been released and, if it has been
  // answered, the answer has been copied. `without_result`: its answer needs no payload.
  void Send(ChunkId chunk, bool without_result);
  // True if the contribution has been sent and neither answered nor abandoned.
  bool IsUnanswered(ChunkId chunk) const;
  bool is_without_result(ChunkId chunk) const { return Of(chunk).without_result; }
  bool is_in_use(ChunkId chunk) const { return Of(chunk).in_use; }
  // The contribution, which is unanswered and in use, has been answered. The answer waits for
  // Release.
  void Accept(ChunkId chunk, ChunkAnswer answer);
  // The contribution's memory is not read any more. Returns the answer, if there is one: the chunk
  // is copying, and stays in use, until Complete is called.
  std::optional<ChunkAnswer> Release(ChunkId chunk);
  // The answer has been copied: the chunk is done.
  void Complete(ChunkId chunk);

  // Fails a chunk that is not done, unless its answer is being copied. That answer is complete, so
  // the chunk still becomes done.
  void Fail(ChunkId chunk, absl::Status error);
  // Makes a chunk that has failed, and is not in use, collecting again.
  void Retry(ChunkId chunk);
  // True if the chunk has failed and Outcome has returned its error.
  bool IsReportedFailure(ChunkId chunk) const;

  // Drops the chunks that are done from the front of `range`. Returns true if none is left, or if
  // one has failed.
  bool IsOver(Range& range) const;
  // Returns OK if all chunks of `range` are done, and the error of the first that has failed.
  // Returns Unavailable if neither is so.
  absl::Status Outcome(Range range);
  // Returns the error of the first chunk that has failed; OK if none has.
  absl::Status FirstFailure() const;
  bool has_failed() const { return failures_ > 0; }

  // Returns the first chunk of `range` that is collecting.
  std::optional<ChunkId> FindCollecting(Range range) const;
  // Returns the first chunk of the group that is not done.
  std::optional<ChunkId> FindNotDone() const;
  // Returns the chunks of `range` that have been sent and are neither done, failed nor copying.
  std::vector<ChunkId> FindSent(Range range) const;
  // True if a chunk has been sent and is neither done nor failed.
  bool has_under_way() const;
  // The number of chunks in use.
  size_t in_use() const { return in_use_; }

 private:
  enum class State { kCollecting, kSent, kCopying, kDone, kFailed };
  struct ChunkState {
    State state = State::kCollecting;
    bool in_use = false;
    bool without_result = false;
    bool reported = false;  // Outcome has returned its error
    std::optional<ChunkAnswer> answer;
    absl::Status error;
  };

  ChunkState& Of(ChunkId chunk) { return chunks_[ToNumber(chunk)]; }
  const ChunkState& Of(ChunkId chunk) const { return chunks_[ToNumber(chunk)]; }
  void StopUsing(ChunkState& chunk);

  std::vector<ChunkState> chunks_;
  size_t failures_ = 0;
  size_t in_use_ = 0;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_ROUNDS_CHUNKS_IN_FLIGHT_H_
