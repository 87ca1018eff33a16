// The versions of one chunk under bounded staleness or async, where members do not wait for each
// other's contributions. An optimizer applies each contribution when it arrives, and so makes a new
// version of the parameters. A Job owns the chunk and passes pushes and plan changes to it.
//
// A member numbers its pushes with its own clock, in place of a round: 1, 2, ... Push 0 has the
// initial parameters: one member pushes them, and the others wait for them.
//
//   a push at clock t ── it is applied, unless the member's clock in this chunk is already
//   t or more ──▶ a new version, in which the member's clock is t ── every member that has
//   data has reached clock t - bound ──▶ the push is answered with the newest version
//
// Clocks are stored with the values. A retried push is therefore applied only once, even after a
// crash. If a chunk has many clocks, those of members that were dropped are removed; the pushes of
// such members are refused.
//
// A follower, which has ended its data and still requests results, is answered when all members
// have ended, with the last version. Its later pushes are answered with OutOfRange.
//
// Thread-safe: `mutex_` protects the state. It is released while a contribution is applied; see
// `computing_`. Nobody waits for the arithmetic: pushes that arrive meanwhile are queued, and the
// thread that computes takes them afterwards. Answers are sent without the lock.
//
// Lock order: `mutex_` comes after the `change_mutex_` of the Job and, on server 0, after the
// coordinator's lock, which is held for open_round(). The locks of CurrentRoster, SlotPool,
// SlotSource and GradientAlerts come after `mutex_`; those classes call nothing back.
//
// Threads:
// - Seat: gRPC threads that read data streams.
// - Close: a thread of Closers. A few small contributions are applied on the thread that called
//   Seat, TakeRoster or EndHold.
// - TakeRoster: the plan thread (see jobs.h) or a thread of Closers. EndHold: the plan thread.
// - The const functions: any thread.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_CHUNK_VERSIONS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_CHUNK_VERSIONS_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/group/group.h"
#include "common/mutex.h"
#include "common/wire/frame.h"
#include "server/core/closing/closing.h"
#include "server/core/closing/contribution.h"
#include "server/core/plan/current_roster.h"
#include "server/core/plan/roster.h"
#include "server/core/rounds/answer_outbox.h"
#include "server/core/rounds/chunk_answers.h"
#include "server/core/rounds/gradient_alerts.h"
#include "server/core/rounds/non_finite.h"
#include "server/core/rounds/queued_pushes.h"
#include "server/core/rounds/result_writer.h"
#include "server/core/rounds/round_result.h"
#include "server/core/rounds/served_chunk.h"
#include "server/state/slots.h"

namespace syncgrads::server {

class ChunkVersions : public ServedChunk {
 public:
  // `plan` has an optimizer and the policy Staleness. `plan`, `roster` and `clock` must outlive
  // this object.
  // Versions are stored in `source`, where the chunk has this `position`; if `source` is null, in
  // memory of the process. If a previous process has left a version in `source`, the chunk
  // continues with it. `alerts` receives warnings about NaNs and infinities; it may be called with
  // this object's lock held.
  ChunkVersions(const GroupPlan& plan, ChunkId chunk, Generation generation,
                const CurrentRoster& roster, const Clock& clock,
                std::shared_ptr<SlotSource> source = nullptr, size_t position = 0,
                std::shared_ptr<GradientAlerts> alerts = std::make_shared<GradientAlerts>());

  // A push may be answered with one of these errors instead of parameters.
  //
  // Errors:
  //   FailedPrecondition  the sender is in no epoch, has gone, or has another incarnation;
  //                       there are no parameters yet, or every member waits for the initial
  //                       ones; the initial parameters have absent spans; the sender has
  //                       ended its data and contributes values
  //   Aborted             the sender was evicted
  //   OutOfRange          all members that had data have ended or gone
  //   InvalidArgument     the contribution has a NaN or an infinity, which the group refuses;
  //                       it counts as a skip
  //   ResourceExhausted, Unavailable
  //                       there is no slot for a version: see SlotPool::Acquire
  //   Unavailable         another push of the member is queued: see QueuedPushes; or its earlier
  //                       contribution has not been applied
  [[nodiscard]] CloseWork Seat(const PushHeader& header, Payload payload,
                               std::shared_ptr<AnswerSink> sink) override;
  // Applies the contributions, unless another thread is applying them.
  [[nodiscard]] CloseWork Close() override;

  [[nodiscard]] CloseWork TakeRoster() override;
  // An epoch may begin at any push, so nothing has to be held.
  Round Hold() override { return Round{1}; }
  [[nodiscard]] CloseWork EndHold() override { return TakeRoster(); }
  std::optional<ChunkWait> Explain() const override;
  std::optional<ChunkWait> ExplainBriefly() const override;
  // The next clock of the slowest member that has data; 0 before the initial parameters.
  Round open_round() const override;
  size_t result_bytes() const override { return chunk_.bytes(); }

 private:
  // Holds `mutex_`. Meanwhile the chunk has the newest roster, which it has taken over. If another
  // thread is applying a contribution, it holds the lock and does nothing else: the function looks
  // at `computing_` first, and leaves the rest to that thread.
  class ABSL_SCOPED_LOCKABLE Turn {
   public:
    explicit Turn(ChunkVersions& chunk) ABSL_EXCLUSIVE_LOCK_FUNCTION(chunk.mutex_);
    ~Turn() ABSL_UNLOCK_FUNCTION();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    ChunkVersions& chunk_;
  };
  // A push that has not been answered.
  struct Waiting {
    Round clock{};
    std::shared_ptr<AnswerSink> sink;
    bool without_result = false;
    bool skip = false;
    absl::Time since;
    // `absent`: the spans that the push does not contribute to. `left_out`: the other spans that
    // were not applied, because they were not finite.
    std::vector<uint32_t> absent, left_out;
  };
  // A contribution that has not been applied.
  struct Pending {
    MemberId member{};
    Round clock{};
    Contribution contribution;
  };

  // Returns false if the push has been answered.
  bool PushLocked(const PushHeader& header, Payload&& payload, std::shared_ptr<AnswerSink>&& sink,
                  AnswerOutbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is left to do if a push waits or a contribution is to be applied.
  CloseWork WorkLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckPushLocked(const PushHeader& header) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies all pending contributions, and answers every push that has nothing to wait for.
  void AdvanceLocked(AnswerOutbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true if there are no parameters and every member waits for the initial ones.
  bool NobodySendsInitialLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ApplyLocked(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the next version to a slot: the initial parameters, or the newest version with the
  // contribution applied.
  absl::StatusOr<Closed> WriteLocked(Pending& pending, Slot& slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies the contribution to the newest version and writes the next version to `slot`. Refuses
  // or leaves out what is not finite (see SetAsideNonFiniteLocked).
  absl::StatusOr<Closed> UpdateLocked(Pending& pending, Slot& slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the spans that are not finite from the contribution. Returns InvalidArgument if the
  // group refuses such a contribution; it then counts as a skip.
  absl::Status SetAsideNonFiniteLocked(Pending& pending, absl::Span<const NonFinite> found)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeRosterLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the records of members that have gone, but for their clocks.
  void ForgetGoneLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // If there are many clocks, removes those of members that were dropped. A version's record then
  // does not grow with the number of members that the job has ever had.
  void ForgetClocksLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AdvanceClockLocked(MemberId member, Round to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Round ClockOfLocked(MemberId member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Members that have data and whose clock is less than `clock`. Members that have left are not
  // included: their pushes were answered before they left.
  std::vector<MemberId> BehindLocked(Round clock) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyDataLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The push that has waited for longest, of those whose members have data; null if there is none.
  const std::pair<const MemberId, Waiting>* OldestWaitingLocked() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets waiting_since() to the time of the oldest waiting push whose member has data.
  void ShowWaitLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The members that a push waits for; empty if the push can be answered.
  std::vector<MemberId> AwaitedLocked(MemberId member, const Waiting& waiting) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const RoundResult> AnswerLocked(MemberId member, const Waiting& waiting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The learning rate for the member's next contribution; see Staleness.
  EpochRate RateLocked(MemberId member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GroupPlan& plan_;
  const ChunkId id_;
  const Chunk& chunk_;
  const Generation generation_;
  const ChunkAnswers answer_;
  const Optimizer& optimizer_;
  const Staleness staleness_;
  const Clock& clock_;
  const CurrentRoster& current_roster_;
  const std::shared_ptr<GradientAlerts> alerts_;

  mutable Mutex mutex_;
  // True while a thread that applies a contribution has released `mutex_`. It then uses `pool_`,
  // `newest_` and `roster_`; other threads do not change the last two.
  bool computing_ ABSL_GUARDED_BY(mutex_) = false;
  QueuedPushes queued_ ABSL_GUARDED_BY(mutex_);
  SlotPool pool_;
  // The newest roster, while a function that needs it holds the lock. Otherwise null, so that no
  // chunk keeps an earlier roster in memory.
  mutable std::shared_ptr<const Roster> roster_ ABSL_GUARDED_BY(mutex_);
  // The number of the roster that was taken over last.
  uint64_t taken_roster_ ABSL_GUARDED_BY(mutex_);
  // The newest version; null before the initial parameters.
  std::shared_ptr<const Slot> newest_ ABSL_GUARDED_BY(mutex_);
  RoundRecord record_ ABSL_GUARDED_BY(mutex_);
  // For each member, the newest push that was applied or contributed nothing. Members that have
  // left may have an entry.
  std::map<MemberId, Round> clocks_ ABSL_GUARDED_BY(mutex_);
  // At most one of each member.
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::map<MemberId, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  // The version that was last sent to each member.
  std::map<MemberId, Round> read_ ABSL_GUARDED_BY(mutex_);
  // For each follower, the push that was answered with the last version.
  std::map<MemberId, Round> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_CHUNK_VERSIONS_H_
