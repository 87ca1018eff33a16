// Adds up the norms of a group's steps on the coordinator, one step after the other.
//
//   undecided ── every chunk's sums are reported ──▶ decided: the StepNorms are stored and
//   sent to all servers, and the next stage or step is undecided

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_NORM_TALLY_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_NORM_TALLY_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "server/core/plan/step_norms.h"

namespace syncgrads::server {

// Not thread-safe; owned by a job's RoundDecisions and protected by Coordinator::mutex_.
class NormTally {
 public:
  // `plan` is that of a group that needs norms; see NeedsNorms.
  explicit NormTally(std::shared_ptr<const GroupPlan> plan)
      : plan_(std::move(plan)), parts_(plan_->layout.chunks().size()) {}

  // Records the sums of one chunk. If a chunk reports a stage more than once, the last report
  // counts. A report is ignored if it is for an earlier epoch, round or stage than another one,
  // if the chunk is not on this server, or if it has the wrong number of spans.
  void Reduced(ServerIndex server, const ReducedChunk& chunk);
  // Discards the server's reports. The server has disconnected and repeats them later.
  void Forget(ServerIndex server);

  // The norms of the present stage; nullopt unless all chunks have reported, it is not decided
  // yet, and the round still belongs to the epoch in which it was reduced. `epoch_of` returns
  // the number of the epoch that a round belongs to, 0 if none.
  //
  // A norm is the square root of a float64 sum of squares. For each tensor, the sums of its
  // spans are added in layout order. For the norm of the whole gradient, the sums of the
  // tensors are then added in order of registration.
  std::optional<StepNorms> Decide(absl::FunctionRef<uint64_t(Round)> epoch_of) const;

  // Records decided norms: those that Decide has returned, or restored ones.
  void Decided(const StepNorms& norms) { decided_ = norms; }

 private:
  // Positions are ordered by time.
  struct Position {
    uint64_t epoch = 0;
    Round round{};
    NormStage stage = NormStage::kGradient;
    friend auto operator<=>(const Position&, const Position&) = default;
  };

  bool IsDecided() const;
  std::vector<SquareSums> SumTensors() const;

  const std::shared_ptr<const GroupPlan> plan_;
  // The epoch, round and stage whose sums are being collected.
  Position position_;
  // The sums of each chunk's spans; empty while the chunk has not reported.
  std::vector<std::vector<SquareSums>> parts_;
  size_t reported_ = 0;  // the number of chunks that have reported
  // The newest norms that were decided.
  std::optional<StepNorms> decided_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_NORM_TALLY_H_
