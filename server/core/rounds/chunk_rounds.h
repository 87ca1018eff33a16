// The rounds of one chunk: seats, closing, and answers. A Job owns the chunk and passes pushes and
// plan changes to it.
//
// One round is open at a time: the round after the newest closed one.
//
//   open ── a member pushes: its seat is taken ── every member that the policy waits for
//   has a seat ──▶ closed: the result is computed, kept, and sent to all seats
//
// A group that needs norms has a state in between:
//
//   open ── the same condition ──▶ reduced: contributions are averaged, and their sums of
//   squares are reported to the coordinator ── the norms are received ──▶ closed
//
// The set of contributions of a reduced round is fixed. A later push to it takes a seat only to
// receive the answer.
//
// Every push is answered exactly once, when its round has closed. A push to a closed round is
// answered at once, from the kept results. A retried push finds its seat taken: it is not counted
// again, and its stream is added to those that the answer is sent to.
//
// A follower is a member that has ended its data and still requests results. No round waits for its
// contribution, but a round does not close while a follower may still request a result that closing
// it would drop.
//
// The parts of the state, each in a class of its own that has no lock:
//
//   RoundSeats         the members that have a seat in the open round, and their contributions
//   ReducedRound       the open round while it waits for norms
//   KeptResults        the results of closed rounds, and the members that may still request them
//   LateContributions  the number of contributions that arrived too late to count
//   ResultWriter       the slots that results are written to, and the choice of the arithmetic
//
// ChunkRounds has the rest: the lock, the open round's number, and the order in which things
// happen. The roster is the job's. Every function that needs it takes over the newest one first: it
// refuses the seats that a new epoch excludes, and forgets members that have gone. So it does not
// matter when TakeRoster is called, and a chunk without seats does not need the call. The group's
// policy decides what keeps a round open and whose contributions count; see round_policy.h.
//
// Thread-safe: `mutex_` protects the state. It is released while a result is computed; see
// `computing_`. Nobody waits for the arithmetic: pushes and norms that arrive meanwhile are queued,
// and the thread that computes takes them afterwards. Without the lock, answers are sent, and the
// listener and `report_reduced` are called.
//
// Lock order: `mutex_` comes after the `change_mutex_` of the Job. The locks of CurrentRoster,
// SlotPool, SlotSource and GradientAlerts come after `mutex_`; those classes call nothing back.
// open_round() takes no lock: on server 0, the coordinator calls it with its lock held.
//
// Threads:
// - Seat: gRPC threads that read data streams.
// - Close: a thread of Closers. A small round is closed on the thread that completed it.
// - Fix, SetNorms, Hold, EndHold: the plan thread (see jobs.h).
// - TakeRoster: the plan thread or a thread of Closers.
// - The const functions: any thread.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_CHUNK_ROUNDS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_CHUNK_ROUNDS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/group/group.h"
#include "common/mutex.h"
#include "common/trace/trace_event.h"
#include "common/wire/frame.h"
#include "server/core/closing/closing.h"
#include "server/core/closing/payload.h"
#include "server/core/plan/current_roster.h"
#include "server/core/plan/roster.h"
#include "server/core/plan/step_norms.h"
#include "server/core/rounds/answer_outbox.h"
#include "server/core/rounds/chunk_answers.h"
#include "server/core/rounds/gradient_alerts.h"
#include "server/core/rounds/kept_results.h"
#include "server/core/rounds/late_contributions.h"
#include "server/core/rounds/queued_pushes.h"
#include "server/core/rounds/reduced_round.h"
#include "server/core/rounds/result_writer.h"
#include "server/core/rounds/round_policy.h"
#include "server/core/rounds/round_result.h"
#include "server/core/rounds/round_seats.h"
#include "server/core/rounds/served_chunk.h"
#include "server/state/slot_source.h"

namespace syncgrads::server {

// Receives each seat that is taken. Thread-safe. Called on the thread that called Seat, or on one
// that has computed a result meanwhile, without locks of the chunk.
class SeatListener {
 public:
  virtual ~SeatListener() = default;
  // The member has taken a seat in the open round, with a contribution or a skip.
  virtual void Seated(Round round, MemberId member) = 0;
};

class ChunkRounds : public ServedChunk {
 public:
  // `plan`, `roster`, `clock` and `listener` must outlive this object; `listener` may be null.
  // Results are stored in `source`, where the chunk has this `position`; if `source` is null, in
  // memory of the process. If a previous process has left closed rounds in `source`, the newest
  // ones are kept and the round after them is open. `alerts` receives warnings about NaNs and
  // infinities; it may be called with this object's lock held. `report_reduced` receives rounds
  // that wait for norms; it is called without locks of this object, and may be null.
  ChunkRounds(const GroupPlan& plan, ChunkId chunk, Generation generation,
              const CurrentRoster& roster, const Clock& clock,
              std::shared_ptr<SlotSource> source = nullptr, size_t position = 0,
              std::shared_ptr<GradientAlerts> alerts = std::make_shared<GradientAlerts>(),
              SeatListener* listener = nullptr,
              std::function<void(ReducedChunk)> report_reduced = nullptr);

  // A push may be answered with one of these errors instead of a result.
  //
  // Errors:
  //   FailedPrecondition  the sender is in no epoch, has gone, or has another incarnation;
  //                       it is not in the epoch of the round; the round is not open yet, or
  //                       its result is no longer kept; the sender has ended its data and
  //                       contributes values; nobody has pushed the initial parameters
  //   Unavailable         the sender is a newcomer, and a round of an earlier epoch is open:
  //                       retry
  //   Aborted             the sender was evicted. Groups with one_epoch: the contribution was
  //                       made in another epoch than the round's. Policy First: the round was
  //                       abandoned
  //   OutOfRange          all members that had data have ended or gone
  //   InvalidArgument     the contribution has a NaN or an infinity, which the group refuses;
  //                       the round was closed without it
  //   ResourceExhausted, Unavailable
  //                       there is no slot for the result: see SlotPool::Acquire
  //   Unavailable         another push of the member is queued: see QueuedPushes
  [[nodiscard]] CloseWork Seat(const PushHeader& header, Payload payload,
                               std::shared_ptr<AnswerSink> sink) override;
  // Closes the open round if nothing keeps it open, and no other thread is closing it; otherwise
  // does nothing.
  [[nodiscard]] CloseWork Close() override;
  [[nodiscard]] CloseWork Fix(Round round, const std::vector<MemberId>& members) override;
  [[nodiscard]] CloseWork SetNorms(const StepNorms& norms) override;
  // Nullopt also while a result is computed: it will be reported.
  std::optional<ReducedChunk> Reduced() const override;
  [[nodiscard]] CloseWork TakeRoster() override;
  Round Hold() override;
  [[nodiscard]] CloseWork EndHold() override;
  // What the open round waits for; nullopt if it has no seat, or if its result is being computed.
  std::optional<ChunkWait> Explain() const override;
  std::optional<ChunkWait> ExplainBriefly() const override;
  std::shared_ptr<const RoundResult> Kept(Round round) const override;
  Round open_round() const override { return Round{open_round_.load()}; }
  uint64_t late_contributions() const override { return late_.count(); }
  size_t result_bytes() const override { return plan_.layout.chunk(id_).bytes(); }

 private:
  // Holds `mutex_`. Meanwhile the chunk has the newest roster, which it has taken over. If another
  // thread is computing a result, it holds the lock and does nothing else: the function looks at
  // `computing_` first, and leaves the rest to that thread.
  class ABSL_SCOPED_LOCKABLE Turn {
   public:
    // Refusals of seats that the roster excludes are added to `outbox`.
    Turn(ChunkRounds& chunk, AnswerOutbox& outbox) ABSL_EXCLUSIVE_LOCK_FUNCTION(chunk.mutex_);
    ~Turn() ABSL_UNLOCK_FUNCTION();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    ChunkRounds& chunk_;
  };
  // What to send and report once `mutex_` has been released.
  struct Outbox {
    AnswerOutbox answers;
    std::vector<std::pair<Round, MemberId>> seated;
    std::vector<ReducedChunk> reduced;
  };
  enum class Pushed {
    kAnswered,  // it was refused, or is a retry whose seat is taken
    kSeated,
    kRequested,  // its round has closed, and it was answered
  };

  void Send(Outbox& outbox);
  void TakeRosterLocked(AnswerOutbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is left to do if the open round can be closed.
  CloseWork WorkLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes what other threads have left while a result was computed.
  void TakeQueuedLocked(Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Pushed PushLocked(const PushHeader& header, Payload&& payload, std::shared_ptr<AnswerSink>&& sink,
                    AnswerOutbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns OK if a contribution of `member`, made in epoch `made_in`, may have a seat in the open
  // round; otherwise the error to refuse it with.
  absl::Status CheckSeatLocked(MemberId member, uint64_t made_in, bool skip) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true if the member is not in the open round's epoch, but in the newest epoch, which is
  // later.
  bool IsAheadLocked(MemberId member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Abandons the open round: refuses its seats with Aborted, and opens `round`.
  void SkipToLocked(Round round, AnswerOutbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The epoch of the open round.
  const Epoch& EpochLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The open round as the policy sees it.
  OpenRound ViewLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What Explain returns, without the members; nullopt if no push waits.
  std::optional<ChunkWait> WaitLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The members of the open round's epoch that keep it from closing.
  std::vector<MemberId> MissingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true if the newest epoch is later than the open round's and a member of it has data.
  // Then followers continue with the rounds of that epoch.
  bool AnyDataLaterLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if the open round has a contribution and nothing blocks it (policy, hold,
  // followers, norms).
  bool CanCloseLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Closes the open round. Requires CanCloseLocked().
  void CloseLocked(Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The contributions that have a seat and count, in rank order.
  std::vector<Seated> CountedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Settles the pushes of the seated members. Contributions that do not count are late.
  void SettleSeatsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Computes the result of the open round. If contributions are not finite, refuses them or leaves
  // spans out, and computes the result without them.
  //
  // Errors: those of ResultWriter::Write
  absl::StatusOr<WrittenResult> WriteLocked(AnswerOutbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What recorded events of the open round have.
  TraceArgs TraceArgsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return TraceArgs::Of(open_, trace_job(), plan_.id, id_);
  }
  // Makes the open round reduced: reports its sums, and waits for norms.
  void ReduceLocked(WrittenResult averaged, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies the norms to the reduced round: begins its next stage, or closes it.
  void UseNormsLocked(Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Publishes and keeps the result of the open round, answers all seats with it, and opens the next
  // round.
  void KeepLocked(WrittenResult written, AnswerOutbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes `round` the open one.
  void SetOpenLocked(Round round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Updates waiting_since().
  void ShowWaitLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GroupPlan& plan_;
  const ChunkId id_;
  const ChunkAnswers answer_;
  const Clock& clock_;
  const CurrentRoster& current_roster_;
  const std::shared_ptr<GradientAlerts> alerts_;
  SeatListener* const listener_;
  const std::function<void(ReducedChunk)> report_reduced_;
  // A copy of `open_` that is read without the lock.
  std::atomic<uint64_t> open_round_;

  mutable Mutex mutex_;
  // True while a thread that is closing the open round has released `mutex_`. It then uses the
  // seats, `writer_`, `reduced_`, the newest slot of `kept_`, `roster_` and `open_`; other threads
  // do not change them, and do not read the first three.
  bool computing_ ABSL_GUARDED_BY(mutex_) = false;
  QueuedPushes queued_ ABSL_GUARDED_BY(mutex_);
  // The newest norms that were received while a result was computed.
  std::optional<StepNorms> queued_norms_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<RoundPolicy> policy_ ABSL_PT_GUARDED_BY(mutex_);
  // The newest roster, while a Turn holds the lock. Otherwise null, so that no chunk keeps an
  // earlier roster in memory.
  mutable std::shared_ptr<const Roster> roster_ ABSL_GUARDED_BY(mutex_);
  // The number of the roster that was taken over last.
  uint64_t taken_roster_ ABSL_GUARDED_BY(mutex_);
  Round open_ ABSL_GUARDED_BY(mutex_);
  // The members that have a seat are in the open round's epoch.
  RoundSeats seats_ ABSL_GUARDED_BY(mutex_);
  ResultWriter writer_ ABSL_GUARDED_BY(mutex_);
  ReducedRound reduced_ ABSL_GUARDED_BY(mutex_);
  KeptResults kept_ ABSL_GUARDED_BY(mutex_);
  // Changed only with `mutex_` held.
  LateContributions late_;
  // Rounds from this one on are not closed.
  std::optional<Round> held_from_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_CHUNK_ROUNDS_H_
