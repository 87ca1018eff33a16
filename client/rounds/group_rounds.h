// The rounds of one group, as one worker goes through them. The training group and every collective
// use this mechanism.
//
// GroupRounds has the lock, the waits, and the calls to the outbox. The parts have the data:
//
//   TensorCollector     what was pushed or skipped in this round, and where results go
//   ContributionSender  how a complete chunk's contribution is sent
//   ChunksInFlight      each chunk's state: sent, answered and released, copied, or failed
//   StepResults         what the answers contain

#ifndef SYNCGRADS_CLIENT_ROUNDS_GROUP_ROUNDS_H_
#define SYNCGRADS_CLIENT_ROUNDS_GROUP_ROUNDS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/api/group.h"
#include "client/link/outbox.h"
#include "client/memory/mapped_results.h"
#include "client/rounds/chunks_in_flight.h"
#include "client/rounds/compressor.h"
#include "client/rounds/contribution.h"
#include "client/rounds/contribution_sender.h"
#include "client/rounds/step_results.h"
#include "client/rounds/tensor_collector.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Always owned by shared_ptrs: of the DataPlane, of the group or collective above it, and of
// messages that have not been released. Thread-safe, but all calls for one tensor in one round must
// come from one thread. Messages are answered (OnUpdate) and released on threads of the transport.
// The parts have no locks of their own, and `outbox` is called without `mutex_`.
class GroupRounds : public std::enable_shared_from_this<GroupRounds> {
 public:
  // `epoch` is the number of the newest epoch that this worker has received. `epoch` and `outbox`
  // must outlive every call except OnUpdate, and every message that has not been released.
  GroupRounds(std::shared_ptr<const GroupPlan> plan, Identity identity,
              const std::atomic<uint64_t>& epoch, Outbox& outbox);

  const GroupPlan& plan() const { return *plan_; }
  std::shared_ptr<const GroupPlan> shared_plan() const { return plan_; }
  // The current round, which Push and Skip contribute to.
  Round round() const {
    MutexLock lock(mutex_);
    return collector_.round();
  }

  // Sets this worker's weight in this round's averages (Group::SetWeight).
  absl::Status SetWeight(double weight) {
    MutexLock lock(mutex_);
    return collector_.SetWeight(weight);
  }
  // Sends this round's contributions uncompressed and resets error feedback
  // (Group::SendUncompressed).
  void SendUncompressed() {
    MutexLock lock(mutex_);
    collector_.SendUncompressed();
  }

  using Destination = client::Destination;

  // The errors that Push would return for a tensor and its values.
  absl::Status CheckPush(TensorId tensor, absl::Span<const std::byte> values) const;
  // Contribute a tensor's values, or nothing, to this round (Group::Push, Group::Skip).
  absl::Status Push(TensorId tensor, absl::Span<const std::byte> values, Destination result) {
    return Contribute(tensor, values, result);
  }
  absl::Status Skip(TensorId tensor, Destination result) {
    return Contribute(tensor, std::nullopt, result);
  }

  // Appends the optimizer's `state` to this worker's contributions to round 0. Call it before the
  // first of them. `state` has passed CheckState and must stay valid until the round is done.
  void SetRestored(const OptimizerState& state) {
    MutexLock lock(mutex_);
    collector_.SetRestored(state);
  }

  using Chunks = ChunksInFlight::Range;
  Chunks AllChunks() const { return {0, static_cast<uint32_t>(plan_->layout.chunks().size())}; }
  Chunks ChunksOf(TensorId tensor) const { return plan_->layout.ChunksOf(tensor); }

  // FailedPrecondition if the contribution to one of `chunks` has not been sent because a tensor
  // has not been pushed or skipped; the message names the tensor.
  absl::Status CheckSent(Chunks chunks) const;
  // Waits until all of `chunks` are done or one of them has failed. Returns false if `deadline`
  // passes first.
  bool Await(Chunks chunks, absl::Time deadline) const;
  // Waits until the chunks of a tensor that was pushed or skipped in this round are all done, or
  // one of them has failed. Returns each tensor once in a round. With InfinitePast it does not
  // wait.
  //
  // Errors:
  //   NotFound          every tensor that was pushed or skipped has been returned
  //   DeadlineExceeded  `deadline` has passed
  absl::StatusOr<TensorId> AwaitNext(absl::Time deadline);
  // Returns OK if all of `chunks` are done, and the error of the first that has failed. Returns
  // Unavailable if neither is so. Failed chunks become eligible for SendRefusedAgain.
  absl::Status Outcome(Chunks chunks) {
    MutexLock lock(mutex_);
    return chunks_.Outcome(chunks);
  }
  // Sends the contributions again that a server refused, if Outcome has returned the refusal. What
  // was pushed for these chunks is still there. DeadlineExceeded if the transport still uses the
  // refused message.
  absl::Status SendRefusedAgain(Chunks chunks, absl::Time deadline);
  // Returns the error of the first chunk that was refused in this round; OK if none was.
  absl::Status Refusal() const {
    MutexLock lock(mutex_);
    return chunks_.FirstFailure();
  }
  // True if Await would return true at once.
  bool IsOver(Chunks chunks) const {
    MutexLock lock(mutex_);
    return chunks_.IsOver(chunks);
  }
  // The number of `chunks` that have not been answered, and the servers that have not answered
  // them.
  struct Unanswered {
    std::vector<ServerIndex> servers;
    size_t chunks = 0;
  };
  Unanswered FindUnanswered(Chunks chunks) const;

  // Counts the contributors of a tensor. All its chunks must be done. If nobody contributed to a
  // part of the tensor but somebody contributed to another part, the former is set to zeros in the
  // result buffer, so that all workers have the same result.
  Contributors CountContributors(TensorId tensor) {
    MutexLock lock(mutex_);
    return results_.Count(tensor, collector_.ResultOf(tensor).buffer);
  }
  // Returns the pieces of a result that stayed where it arrived (Group::InPlaceResult).
  absl::StatusOr<std::vector<absl::Span<const std::byte>>> InPlaceResult(TensorId tensor) {
    MutexLock lock(mutex_);
    return results_.InPlace(tensor);
  }
  // Returns the memory of servers on this host in which results in place lie.
  std::vector<std::shared_ptr<const MappedResults>> FindMapped() const {
    MutexLock lock(mutex_);
    return results_.FindMapped();
  }
  // What InPlaceResult returns, and the memory of a server on this host in which all of it lies;
  // null if it does not lie in one such memory.
  struct PlacedResult {
    std::vector<absl::Span<const std::byte>> pieces;
    std::shared_ptr<const MappedResults> mapped;
  };
  absl::StatusOr<PlacedResult> FindInPlace(TensorId tensor) {
    MutexLock lock(mutex_);
    SYNCGRADS_ASSIGN_OR_RETURN(std::vector<absl::Span<const std::byte>> pieces,
                               results_.InPlace(tensor));
    return PlacedResult{std::move(pieces), results_.MappingOf(tensor)};
  }
  // Gathers only, when all chunks are done: returns the ranks that contributed. Aborted if they are
  // not the same in all chunks.
  absl::StatusOr<std::vector<uint32_t>> GatheredRanks() const {
    MutexLock lock(mutex_);
    return results_.GatheredRanks();
  }

  // The newest epoch in which one of `chunks`, which are all done, has closed.
  uint64_t EpochOf(Chunks chunks) const {
    MutexLock lock(mutex_);
    return results_.EpochOf(chunks);
  }

  // Begins the next round. FailedPrecondition unless every chunk is done.
  absl::Status EndRound();

  // Returns who contributed to this round, when every chunk is done.
  using Closing = StepResults::Closing;
  Closing FindClosing() const {
    MutexLock lock(mutex_);
    return results_.FindClosing();
  }

  // True if the compression error of this round's contributions is kept only after they are known
  // to have counted. Under a quorum they may be late and not count.
  bool awaits_outcome() const;
  // Keeps the compression error of the chunks in which this worker's contribution was counted. For
  // the other chunks, error feedback continues as if nothing had been contributed. `rank_in`
  // returns this worker's rank in an epoch, if it has one; it is called once for each epoch,
  // without locks.
  void KeepResiduals(absl::FunctionRef<std::optional<uint32_t>(uint64_t epoch)> rank_in);

  // The newest round that is known to have closed, when every chunk is done. It is later than the
  // current round if that one closed without this worker.
  Round FindNewestClosed() const {
    MutexLock lock(mutex_);
    return std::max(collector_.round(), results_.FindNewest());
  }
  // Abandons this round and continues with a later one, in which this worker skips every tensor.
  // The results go to this round's destinations. Errors: those of BeginAgain and Skip.
  absl::Status Overtake(Round round, absl::Time deadline);

  // From now on, this round's contributions are made in epoch `number`.
  void PinEpoch(uint64_t number) {
    MutexLock lock(mutex_);
    collector_.PinEpoch(number);
  }
  std::optional<uint64_t> pinned_epoch() const {
    MutexLock lock(mutex_);
    return collector_.pinned_epoch();
  }

  // Waits until no contribution to this round is unanswered. Returns false if `deadline` passes
  // first.
  bool AwaitAnswered(absl::Time deadline);
  // Abandons this round and begins `round`, which may be the same one. Contributions in progress
  // are forgotten.
  //
  // Errors:
  //   DeadlineExceeded  buffers are still being sent; the call can be repeated
  //   others            the status that was given to Fail
  absl::Status BeginAgain(Round round, absl::Time deadline);

  // Declares the end of this worker's data: from now on, tensors can only be skipped. Returns the
  // last round that this worker contributed to on every chunk: the current round if every tensor
  // has been pushed or skipped, else the previous one. FailedPrecondition in round 0, or if only
  // some tensors have been pushed or skipped; the message names one that has not.
  absl::StatusOr<Round> EndData() {
    MutexLock lock(mutex_);
    return failure_.ok() ? collector_.EndData() : failure_;
  }
  // FailedPrecondition if tensors have been pushed or skipped in this round, no chunk has failed,
  // and results are missing.
  absl::Status CheckIdle() const;
  // The newest round in which no member waits for this worker, as far as it knows, and that has not
  // failed; nullopt before the first one. It has contributed all of its part, or some of it while
  // it waits for a result itself: then it may be waiting for the others.
  std::optional<Round> Progress() const;

  // Fails everything that is not done, and every later call, with `status`. Only the first call
  // counts.
  void Fail(absl::Status status);
  // Waits until no buffer is in use. Returns false if `deadline` passes first. After Fail, only the
  // transport still uses buffers.
  bool AwaitReleased(absl::Time deadline) {
    MutexLock lock(mutex_);
    return AwaitReleasedLocked(deadline);
  }

  // Takes the answer to a contribution that the outbox has dropped or is about to drop. `memory`
  // keeps the frame's payload alive. The answer is ignored if no contribution of this round waits
  // for it.
  //
  // Errors:
  //   InvalidArgument  the answer does not fit the chunk; nothing has changed
  absl::Status OnUpdate(const UpdateFrame& update, std::shared_ptr<const void> memory);

 private:
  // A contribution that is complete and not yet sent.
  struct Departure {
    Contribution contribution;
    // The memory of the previous round's in-place result. Nobody reads it any more; it is released
    // with this struct, outside of the lock.
    std::shared_ptr<const void> returned;
  };

  // Contributes `values`; nothing if they are nullopt.
  absl::Status Contribute(TensorId tensor, std::optional<absl::Span<const std::byte>> values,
                          Destination result);
  // Makes the contribution to a complete chunk, which counts as sent from here on.
  Departure DepartLocked(ChunkId chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rotates `departures` so that those for first_server_ come first. Members begin with different
  // servers, so that they do not all send to one server at the same time.
  void BeginWithAnother(std::vector<Departure>& departures) const;
  void Send(Departure departure);
  // Called when the last reference to the chunk's message has been dropped, so that nobody reads
  // the contribution any more. Copies the answer, if there is one.
  void OnReleased(ChunkId chunk);
  // Notifies the threads that wait for a chunk.
  void NotifyLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits in AwaitNext. Returns false if `deadline` passes first.
  bool AwaitChangeLocked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // No chunk may be in use.
  void BeginRoundLocked(Round round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AwaitReleasedLocked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const std::vector<ChunkId>& chunks, Round round);
  // Names the current round for people, as in: step 5 of group "model"
  std::string StepLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const GroupPlan> plan_;
  const Generation generation_;
  const MemberId member_;
  const std::atomic<uint64_t>& epoch_;
  Outbox& outbox_;
  // The state of a chunk is used by the thread that sends its contribution or copies its answer
  // while the chunk is in use, and under `mutex_` otherwise.
  Compressor compressor_;
  ContributionSender sender_;
  // The server that this member sends to first in a round.
  const ServerIndex first_server_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  // Notified when all chunks of one of `awaited_` are done or one of them has failed.
  mutable CondVar over_;
  // The chunks that threads in Await wait for.
  mutable std::vector<Chunks*> awaited_ ABSL_GUARDED_BY(mutex_);
  // The number of threads that wait in AwaitNext.
  int awaiting_next_ ABSL_GUARDED_BY(mutex_) = 0;
  TensorCollector collector_ ABSL_GUARDED_BY(mutex_);
  ChunksInFlight chunks_ ABSL_GUARDED_BY(mutex_);
  StepResults results_ ABSL_GUARDED_BY(mutex_);
  // The tensors that were pushed or skipped in this round and that AwaitNext has not returned, each
  // with its chunks that are not known to be done.
  struct Unreported {
    TensorId tensor;
    Chunks chunks;
  };
  std::vector<Unreported> unreported_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_ROUNDS_GROUP_ROUNDS_H_
