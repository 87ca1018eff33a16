// The norms of a group's steps, as the coordinator puts them together, one step after
// the other.
//
//   undecided ── every chunk has told its part ──▶ decided: what follows is stored and
//   told to all servers, and the next stage or step is undecided

#ifndef SYNCGRADS_SERVER_CORE_NORM_TALLY_H_
#define SYNCGRADS_SERVER_CORE_NORM_TALLY_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/group.h"
#include "common/ids.h"
#include "server/core/step_norms.h"

namespace syncgrads::server {

// Not thread-safe.
class NormTally {
 public:
  // Of a group that needs norms.
  explicit NormTally(std::shared_ptr<const GroupPlan> plan)
      : plan_(std::move(plan)), parts_(plan_->layout.chunks().size()) {}

  // What a server tells of a chunk of its own; the last word on a stage counts. Of an
  // earlier stage or round than others have told of, or of a chunk that is not the
  // server's, nothing is heard.
  void Reduced(ServerIndex server, const ReducedChunk& chunk);
  // The server has gone, and will say again what it still has.
  void Forget(ServerIndex server);

  // What all chunks' parts make, if they are here and it has not been decided.
  // `epoch_of` is the epoch that a round belongs to now, 0 for none.
  //
  // A norm is the root of a sum in float64: of each tensor, of its spans in the order
  // of the layout, and then of the tensors in theirs.
  std::optional<StepNorms> Decide(absl::FunctionRef<uint64_t(Round)> epoch_of) const;

  // It has been stored.
  void Decided(const StepNorms& norms) { decided_ = norms; }

 private:
  // In the order in which they come.
  struct Position {
    uint64_t epoch = 0;
    Round round{};
    NormStage stage = NormStage::kGradient;
    friend auto operator<=>(const Position&, const Position&) = default;
  };

  bool IsDecided() const;
  std::vector<SquareSums> SumTensors() const;

  const std::shared_ptr<const GroupPlan> plan_;
  // What parts are being collected of, and those: of each chunk's spans, empty while a
  // chunk has not told.
  Position position_;
  std::vector<std::vector<SquareSums>> parts_;
  size_t told_ = 0;  // how many of them are not empty
  std::optional<StepNorms> decided_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_NORM_TALLY_H_
