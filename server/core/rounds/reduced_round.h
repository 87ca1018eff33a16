// The state between the two parts in which a round closes that needs norms; see step_norms.h.
//
//   reduced: the contributions are averaged; their sums of squares are reported to the coordinator
//   ── the norms of the stage are received ──▶ the averaged gradients are clipped ──▶ if there is
//   another stage, its sums are reported and its norms awaited ──▶ the update is applied
//
// The set of contributions of a reduced round is fixed, and so is its epoch.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_REDUCED_ROUND_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_REDUCED_ROUND_H_

#include <optional>
#include <vector>

#include "common/group/group.h"
#include "common/ids.h"
#include "common/optim/update.h"
#include "server/core/plan/step_norms.h"
#include "server/core/rounds/result_writer.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// One object serves all rounds of a chunk, one after the other. It also keeps the newest norms,
// which after a restart of this server may be received before their round is reduced.
//
// Not thread-safe; protected by ChunkRounds::mutex_ and ChunkRounds::computing_.
class ReducedRound {
 public:
  // `plan` must outlive this object. `chunk` is one of the plan's.
  ReducedRound(const GroupPlan& plan, ChunkId chunk, Generation generation);

  // True from Begin until UseNorms returns a result. The open round is then reduced.
  bool exists() const { return open_.has_value(); }
  // Makes `round`, which is open, reduced, and computes the sums of its first stage. `averaged` has
  // the averaged gradients, `previous` the parameters and the optimizer's slots.
  void Begin(Round round, WrittenResult averaged, const Slot& previous);
  // What to report to the coordinator, without the job's name: the sums of the stage whose norms
  // are awaited. Requires exists().
  ReducedChunk Report() const;

  // Norms have been received. They replace earlier ones, and are used only if they are for the
  // reduced round.
  void SetNorms(const StepNorms& norms) { norms_ = norms; }
  // Returns true if a round is reduced, and the norms that it waits for have been received.
  bool HasNorms() const;
  // Applies the norms. Returns the round's result if this was the last stage; otherwise computes
  // the sums of the next stage, which are then to be reported. Requires HasNorms(). `previous` is
  // the one that was passed to Begin.
  std::optional<WrittenResult> UseNorms(const Slot& previous);

 private:
  struct Open {
    Round round{};
    WrittenResult written;
    // True once the gradients have been multiplied by the clipping factor.
    bool clipped = false;
    // The stage whose norms are awaited, and its sums.
    NormStage stage = NormStage::kGradient;
    std::vector<SquareSums> sums;
  };

  void BeginStage(NormStage stage, const Slot& previous);

  const GroupPlan& plan_;
  const ChunkId id_;
  const Chunk& chunk_;
  const Generation generation_;

  std::optional<Open> open_;
  // The newest norms from the coordinator.
  std::optional<StepNorms> norms_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_REDUCED_ROUND_H_
