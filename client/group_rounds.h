// The rounds of one group as one worker goes through them: the one mechanism
// under the training group and under every collective.
//
// A tensor is pushed or skipped once a round. A chunk's contribution is sent,
// once and whole, when all tensors with a span in it have been; its life in a
// round:
//
//   collecting ──all tensors are in──▶ sent ──answer, released──▶ copying ──▶ done
//       │                               │
//       └──────────── gave up ──────────┴──refused, or gave up──▶ failed
//                                       ▲                          │
//                                       └── refused: another wait ─┘
//
// "Released" means that nobody reads the contribution's memory any more. An
// answer is copied to the callers' buffers only then: a result may alias its
// input, and the input may still be in the transport's hands on a connection
// that broke.

#ifndef SYNCGRADS_CLIENT_GROUP_ROUNDS_H_
#define SYNCGRADS_CLIENT_GROUP_ROUNDS_H_

#include <atomic>
#include <compare>
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
#include "client/client.h"
#include "client/compressor.h"
#include "client/contribution.h"
#include "client/shared_buffers.h"
#include "client/staging.h"
#include "client/transport.h"
#include "common/group.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

struct ChunkKey {
  GroupId group{};
  ChunkId chunk{};
  Round round{};

  friend auto operator<=>(const ChunkKey&, const ChunkKey&) = default;
};

// The way to the servers. Thread-safe.
class Outbox {
 public:
  virtual ~Outbox() = default;
  // Sends `message`, which was made in epoch `made_in`, until it has been answered or
  // forgotten.
  virtual void Send(ServerIndex server, const ChunkKey& key, uint64_t made_in,
                    std::shared_ptr<const OutgoingMessage> message) = 0;
  // Lets go of the message; its answer is of no interest.
  virtual void Forget(ServerIndex server, const ChunkKey& key) = 0;
  // Memory that the server can map; null if it is not on this host.
  virtual SharedBuffers* SharedWith(ServerIndex) { return nullptr; }
  // A codec has been replaced by a milder one; in words, for people to read.
  virtual void OnCodecReplaced(const std::string&) {}
};

// Who a worker is on the wire.
struct Identity {
  Generation generation{};
  MemberId member{};
  Incarnation incarnation{};
};

// Always in a shared_ptr. Thread-safe, except that one round's calls for one
// tensor come from one thread.
class GroupRounds : public std::enable_shared_from_this<GroupRounds> {
 public:
  // `epoch` is the number of the newest epoch known; it and `outbox` must outlive
  // every call but those to OnUpdate and to released messages.
  GroupRounds(std::shared_ptr<const GroupPlan> plan, Identity identity,
              const std::atomic<uint64_t>& epoch, Outbox& outbox);

  const GroupPlan& plan() const { return *plan_; }
  std::shared_ptr<const GroupPlan> shared_plan() const { return plan_; }
  // The round that Push and Skip contribute to.
  Round round() const;

  // As Group::SetWeight.
  absl::Status SetWeight(double weight);
  // As Group::SendWhole.
  void SendWhole();

  // Where a tensor's result goes; a buffer is one as it is.
  struct Destination {
    Destination() = default;
    Destination(absl::Span<std::byte> buffer) : buffer(buffer) {}
    static Destination InPlace() {
      Destination destination;
      destination.in_place = true;
      return destination;
    }

    // As long as the tensor (in a gather: as many times as there is room for);
    // empty if it is not wanted.
    absl::Span<std::byte> buffer;
    // It stays where it arrives; there is no buffer. Not for gathers.
    bool in_place = false;
  };

  // As Group::Push and Group::Skip.
  absl::Status Push(TensorId tensor, absl::Span<const std::byte> values, Destination result);
  absl::Status Skip(TensorId tensor, Destination result);

  // The contributions to round 0 have what an optimizer keeps behind them. Before the
  // first of them; `state` has passed CheckState and stays until the round is done.
  void SetRestored(const OptimizerState& state);

  using Chunks = Layout::ChunkRange;
  Chunks AllChunks() const;
  Chunks ChunksOf(TensorId tensor) const { return plan_->layout.ChunksOf(tensor); }

  // FailedPrecondition, naming a tensor, if the contribution of one of `chunks`
  // has not been sent because the tensor has not been pushed or skipped.
  absl::Status CheckSent(Chunks chunks) const;
  // Waits until all of `chunks` are done or one has failed; false if `deadline`
  // passed first.
  bool Await(Chunks chunks, absl::Time deadline) const;
  // OK once all are done; the error of the first that has failed; Unavailable
  // while neither.
  absl::Status Outcome(Chunks chunks);
  // Sends those of `chunks` again that Outcome has said were refused: what was pushed
  // for them is still there. DeadlineExceeded if it is still in the transport's hands.
  absl::Status SendRefusedAgain(Chunks chunks, absl::Time deadline);
  // The error of the first chunk that was refused in this round; OK if none was.
  absl::Status Refusal() const;
  // Whether Await would return at once.
  bool IsOver(Chunks chunks) const;
  // The servers that have not answered one of `chunks`, and how many chunks.
  struct Unanswered {
    std::vector<ServerIndex> servers;
    size_t chunks = 0;
  };
  Unanswered FindUnanswered(Chunks chunks) const;

  // Of a tensor whose chunks are done. Where nobody contributed to a part of it
  // but somebody to another, the part is set to zeros, so that all workers have
  // the same.
  Contributors CountContributors(TensorId tensor);
  // As Group::InPlaceResult.
  absl::StatusOr<std::vector<absl::Span<const std::byte>>> InPlaceResult(TensorId tensor);
  // Of a gather whose chunks are done: the ranks. Aborted if they are not the
  // same in all chunks.
  absl::StatusOr<std::vector<uint32_t>> GatheredRanks() const;

  // Begins the next round. FailedPrecondition unless every chunk is done.
  absl::Status EndRound();

  // Who contributed to a round that is done, and the epoch it belonged to.
  struct Closing {
    uint64_t epoch = 0;
    // Ranks, ascending: those who contributed to any chunk.
    std::vector<uint32_t> contributors;
    // Each of them contributed to every chunk.
    bool whole = true;
    // If not: who contributed to each chunk.
    std::vector<std::vector<uint32_t>> parts;
  };
  Closing FindClosing() const;

  // Whether what this round's contributions have lost in encoding is kept only once
  // they are known to have counted: under a quorum they may be late.
  bool awaits_outcome() const;
  // Keeps it of chunks that count this worker; of the others it is as if nothing had
  // been contributed. `rank_in` says which rank this worker has in an epoch, if any; it
  // is asked once for each epoch, without locks.
  void KeepResiduals(absl::FunctionRef<std::optional<uint32_t>(uint64_t epoch)> rank_in);

  // The newest round that is known to have closed, once every chunk is done: later
  // than this one if it closed without this worker.
  Round FindNewestClosed() const;
  // Goes on with a later round, which it only skips: the results go where this one's
  // do. Errors as BeginAgain, and as Skip.
  absl::Status Overtake(Round round, absl::Time deadline);

  // This round's contributions from now on are made in epoch `number`.
  void PinEpoch(uint64_t number);
  std::optional<uint64_t> pinned_epoch() const;

  // Waits until no contribution of this round waits for its answer; false if
  // `deadline` passed first.
  bool AwaitAnswered(absl::Time deadline);
  // Gives up this round and begins `round`, the same one or another. What is under
  // way is forgotten.
  //
  // Errors:
  //   DeadlineExceeded  buffers are still being sent; it can be repeated
  //   others            as everything failed
  absl::Status BeginAgain(Round round, absl::Time deadline);

  // No more pushes, only skips. Returns the last round contributed to on every
  // chunk: this one if every tensor is in, else the one before.
  // FailedPrecondition, naming a tensor, if only some are in, and in round 0.
  absl::StatusOr<Round> EndData();
  // FailedPrecondition if some tensors are in, in this round, and results are
  // missing.
  absl::Status CheckIdle() const;
  // The newest round with a part contributed that has not failed; none before the
  // first.
  std::optional<Round> Progress() const;

  // Everything that is not done fails with `status`, now and later.
  void Fail(absl::Status status);
  // Waits until no buffer is in use; false if `deadline` passed first. After Fail,
  // it is up to the transport alone.
  bool AwaitReleased(absl::Time deadline);

  // Takes the answer of a contribution that the outbox has let go of, or is about
  // to. `memory` keeps the frame's payload alive. An answer that is not waited
  // for is ignored.
  //
  // Errors:
  //   InvalidArgument  it does not fit the chunk; nothing has changed
  absl::Status OnUpdate(const UpdateFrame& update, std::shared_ptr<const void> memory);

 private:
  enum class TensorState { kAwaited, kPushed, kSkipped };
  struct TensorRound {
    TensorState state = TensorState::kAwaited;
    absl::Span<const std::byte> values;
    Destination result;
  };
  // A result in place: what Targets were not copied from.
  struct Kept {
    Pieces payload;
    std::shared_ptr<const void> memory;  // that the payload lies in
    std::vector<uint32_t> counts;
  };
  enum class ChunkState { kCollecting, kSent, kCopying, kDone, kFailed };
  struct ChunkRound {
    ChunkState state = ChunkState::kCollecting;
    size_t tensors_awaited = 0;
    bool in_use = false;  // by a message, or by the copying of a result
    bool without_result = false;
    bool said = false;  // by Outcome, that it has failed
    std::optional<UpdateFrame> answer;
    std::shared_ptr<const void> answer_memory;
    std::vector<uint32_t> counts;
    std::vector<uint32_t> contributors;
    std::vector<uint32_t> left_out;
    uint64_t epoch = 0;
    Round newest{};
    absl::Status error;
  };
  // A contribution that is complete and not yet encoded.
  struct Departure {
    ServerIndex server;
    ChunkKey key;
    PushHeader header;
    std::vector<absl::Span<const std::byte>> spans;
    bool whole;  // as SendWhole says
    // The result of the round before, which nobody reads any more.
    std::optional<Kept> returned;
  };

  absl::Status Contribute(TensorId tensor, TensorState state, absl::Span<const std::byte> values,
                          Destination result);
  Departure CompleteLocked(uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves those to this member's first server to the front: members that begin with
  // different servers do not all meet at one.
  void BeginWithAnother(std::vector<Departure>& departures) const;
  void Depart(Departure departure);
  // Sends it encoded; false if it is to be sent as it is.
  bool DepartEncoded(Departure& departure);
  absl::Status CheckUpdateLocked(const Chunk& chunk, const ChunkRound& state,
                                 const UpdateFrame& update) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where the pieces of an answer's payload go.
  std::vector<Target> TargetsLocked(uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As many zeros as the largest chunk has bytes.
  const std::byte* ZerosLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsKeptLocked(uint32_t chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnReleased(uint32_t chunk);
  void FailChunkLocked(uint32_t chunk, absl::Status error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first of the chunk's tensors that is not in.
  const TensorSpec& AwaitedTensorLocked(uint32_t chunk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginRoundLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetAll(const std::vector<uint32_t>& chunks, Round round);
  bool holds_parameters() const { return std::holds_alternative<Optimizer>(plan_->spec.rule); }
  bool gathers() const { return std::holds_alternative<Gather>(plan_->spec.rule); }

  const std::shared_ptr<const GroupPlan> plan_;
  const Identity identity_;
  const std::atomic<uint64_t>& epoch_;
  Outbox& outbox_;
  Staging staging_;
  Compressor compressor_;
  // That this member sends to first.
  const ServerIndex first_server_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  Round round_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> pinned_epoch_ ABSL_GUARDED_BY(mutex_);
  double weight_ ABSL_GUARDED_BY(mutex_) = 1;
  bool whole_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<TensorRound> tensors_ ABSL_GUARDED_BY(mutex_);
  std::vector<ChunkRound> chunks_ ABSL_GUARDED_BY(mutex_);
  // Results in place, by chunk: of this round where it is done, else of the one
  // before until the chunk's contribution is sent.
  std::vector<std::optional<Kept>> kept_ ABSL_GUARDED_BY(mutex_);
  // For parts of results in place that nobody contributed to.
  std::vector<std::byte> zeros_ ABSL_GUARDED_BY(mutex_);
  size_t tensors_in_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t in_use_ ABSL_GUARDED_BY(mutex_) = 0;
  bool data_ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Of round 0; and each chunk's counts on their way.
  const OptimizerState* restored_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<std::vector<uint64_t>> restored_updates_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GROUP_ROUNDS_H_
