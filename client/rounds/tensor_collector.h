// The tensors of one round of a group: what the caller has pushed, and where the results go.
//
// A tensor is pushed or skipped once in a round. A chunk is complete when all tensors with a span
// in the chunk have been pushed or skipped. Its contribution is then made once and whole.

#ifndef SYNCGRADS_CLIENT_ROUNDS_TENSOR_COLLECTOR_H_
#define SYNCGRADS_CLIENT_ROUNDS_TENSOR_COLLECTOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/link/outbox.h"
#include "client/rounds/contribution.h"
#include "client/rounds/optimizer_state.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// The destination of a tensor's result. A buffer converts to a Destination.
struct Destination {
  Destination() = default;
  Destination(absl::Span<std::byte> buffer) : buffer(buffer) {}
  static Destination InPlace(absl::Span<std::byte> otherwise = {}) {
    Destination destination(otherwise);
    destination.in_place = true;
    return destination;
  }
  bool is_wanted() const { return in_place || !buffer.empty(); }

  // Has the tensor's length; in a gather, that length times the maximum number of contributions.
  // Empty if no result is requested.
  absl::Span<std::byte> buffer;
  // If true, the result stays where it arrives: in shared memory or, without a buffer, anywhere.
  // Not for gathers.
  bool in_place = false;
};

// Owned by GroupRounds, which calls it with its lock held. Thread-compatible.
class TensorCollector {
 public:
  // `plan` must outlive this object. Begins the group's first round.
  TensorCollector(const GroupPlan& plan, Identity identity);

  Round round() const { return round_; }
  // Forgets what has been collected, and what has been set for the round. Begins `round`.
  void Begin(Round round);

  // Sets the weight of the contributions in the round's averages.
  //
  // Errors:
  //   InvalidArgument     `weight` is not a positive finite number
  //   FailedPrecondition  a tensor has been pushed or skipped
  absl::Status SetWeight(double weight);
  // The round's contributions are sent uncompressed (Group::SendUncompressed).
  void SendUncompressed() { uncompressed_ = true; }
  bool is_uncompressed() const { return uncompressed_; }
  // The round's contributions are made in epoch `number`.
  void PinEpoch(uint64_t number) { pinned_epoch_ = number; }
  std::optional<uint64_t> pinned_epoch() const { return pinned_epoch_; }
  // Appends the optimizer's `state` to the contributions to round 0. `state` has passed CheckState
  // and must stay valid until round 0 is done.
  void SetRestored(const OptimizerState& state);

  // InvalidArgument if the group has no such tensor, or `values` have not the tensor's length.
  absl::Status CheckArguments(TensorId tensor,
                              std::optional<absl::Span<const std::byte>> values) const;
  // Collects a tensor: its values, which must stay valid until the round is done, or nullopt to
  // contribute nothing. CheckArguments has accepted both. Exactly those of the tensor's chunks for
  // which IsComplete returns true afterwards have become complete by this call.
  //
  // Errors:
  //   FailedPrecondition  the tensor has been pushed or skipped in this round; there are values,
  //   but
  //                       EndData has been called; or the contribution depends on the members, and
  //                       no epoch is pinned
  absl::Status Collect(TensorId tensor, std::optional<absl::Span<const std::byte>> values,
                       Destination result);
  // The errors of Collect for a tensor with values, or without.
  absl::Status CheckAwaited(TensorId tensor, bool has_values) const;
  bool IsComplete(ChunkId chunk) const { return awaited_[ToNumber(chunk)] == 0; }
  // Makes the contribution to a complete chunk. `epoch` is the newest epoch; the contribution
  // belongs to it if no epoch is pinned.
  Contribution ContributionTo(ChunkId chunk, uint64_t epoch);

  // How many tensors have been pushed or skipped.
  size_t collected() const { return collected_; }
  bool is_complete() const { return collected_ == tensors_.size(); }
  // Returns the first of the chunk's tensors that has not been pushed or skipped.
  const TensorSpec& FindAwaited(ChunkId chunk) const;
  // Declares that no tensor will be pushed any more. Returns the last round that was contributed to
  // on every chunk (GroupRounds::EndData, with its errors).
  absl::StatusOr<Round> EndData();

  const Destination& ResultOf(TensorId tensor) const { return tensors_[ToNumber(tensor)].result; }
  std::vector<Destination> Results() const;
  // True if the result of a tensor in the chunk was requested in place.
  bool IsInPlace(ChunkId chunk) const;
  // True if `answer` stays where it has arrived, for a tensor in its chunk.
  bool StaysInPlace(const UpdateFrame& answer) const;
  // Gathers only: InvalidArgument if a result buffer has no room for the contributions of all
  // contributors of `answer`, whether it has a payload or not.
  absl::Status CheckRoom(const UpdateFrame& answer) const;
  // Returns where the pieces of an answer's payload are copied to; not what StaysInPlace.
  std::vector<Target> TargetsOf(const UpdateFrame& answer) const;

 private:
  enum class State { kAwaited, kPushed, kSkipped };
  struct Tensor {
    State state = State::kAwaited;
    absl::Span<const std::byte> values;
    Destination result;
  };

  const GroupPlan& plan_;
  const Identity identity_;
  Round round_;
  double weight_ = 1;
  bool uncompressed_ = false;
  std::optional<uint64_t> pinned_epoch_;
  std::vector<Tensor> tensors_;
  size_t collected_ = 0;
  std::vector<size_t> awaited_;  // for each chunk, how many of its tensors are awaited
  bool data_ended_ = false;
  // Round 0 only: the optimizer's state to restore, and the update counts of each chunk, which must
  // stay valid while they are sent.
  const OptimizerState* restored_ = nullptr;
  std::vector<std::vector<uint64_t>> restored_updates_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_ROUNDS_TENSOR_COLLECTOR_H_
