// The rounds of one chunk: seats, closing, and answers.
//
// One round is open at a time, the one after the newest that has closed:
//
//   open ── a member's push ──▶ its seat is taken ── everybody has a seat, or is
//   not waited for ──▶ closed: the result is made, kept, and sent to all seats
//
// Of a group that needs norms there is a state in between:
//
//   … is not waited for ──▶ reduced: contributions are averaged, and the coordinator is
//   told its part of the norms ── it has told what follows from them ──▶ closed
//
// A round that is reduced has settled whose contributions count; only its answers may
// still be asked for elsewhere.
//
// Every push is answered exactly once, when its round has closed: pushes to the
// closed round at once, from what is kept. A push that is repeated finds its seat
// taken and only says where the answer is to go.
//
// What keeps a round open, and who counts in it, is its group's policy's affair; see
// round_policy.h.
//
// A member that has ended its data and follows is not waited for in a round, but
// no result is dropped that a follower has not asked for: with two results that are
// kept, the round after one does not close before it.
//
// Thread-safe: one mutex, which is held while a round is closed.

#ifndef SYNCGRADS_SERVER_CORE_CHUNK_ROUNDS_H_
#define SYNCGRADS_SERVER_CORE_CHUNK_ROUNDS_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/group.h"
#include "common/mutex.h"
#include "common/wire/frame.h"
#include "server/core/chunk_answers.h"
#include "server/core/closing.h"
#include "server/core/contribution.h"
#include "server/core/gradient_alerts.h"
#include "server/core/roster.h"
#include "server/core/round_policy.h"
#include "server/core/round_result.h"
#include "server/core/served_chunk.h"
#include "server/core/step_norms.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Is told of contributions as they come. Thread-safe; called without locks.
class SeatListener {
 public:
  virtual ~SeatListener() = default;
  // The member has contributed to the open round, or skipped it.
  virtual void Seated(Round round, MemberId member) = 0;
};

class ChunkRounds : public ServedChunk {
 public:
  // `plan` and `clock` must outlive this object, and so must `listener`, which may be
  // null. Results lie in `source`, at this chunk's `position` in it, unless it is null.
  // Where a server that died has left closed rounds in it, they are kept and the next
  // is open. `alerts` is told of contributions with NaNs and infinities, and
  // `tell_reduced` of rounds that wait for norms: without locks of this object.
  ChunkRounds(const GroupPlan& plan, ChunkId chunk, Generation generation,
              std::shared_ptr<const Roster> roster, const Clock& clock,
              std::shared_ptr<SlotSource> source = nullptr, size_t position = 0,
              std::shared_ptr<GradientAlerts> alerts = std::make_shared<GradientAlerts>(),
              SeatListener* listener = nullptr,
              std::function<void(ReducedChunk)> tell_reduced = nullptr);

  // Answers instead of a result:
  //   FailedPrecondition  the sender is gone, or of another incarnation or epoch;
  //                       the round is not open yet, or no longer kept; or the
  //                       sender has ended and contributes values
  //   Unavailable         a newcomer is ahead of those before it: try again
  //   Aborted             of a group of one epoch: it was made in another than its
  //                       round's. Of one that closes with the first: its round
  //                       was given up
  //   OutOfRange          all members that had data have ended or gone
  //   InvalidArgument     it has a NaN or an infinity, which the group refuses; the
  //                       round has been closed without it
  [[nodiscard]] bool Seat(const PushHeader& header, Payload payload,
                          std::shared_ptr<AnswerSink> sink) override;
  // Closes the open round unless it waits for somebody.
  void Close() override;
  [[nodiscard]] bool Fix(Round round, const std::vector<MemberId>& members) override;
  [[nodiscard]] bool SetNorms(const StepNorms& norms) override;
  std::optional<ReducedChunk> Reduced() const override;
  void SetRoster(std::shared_ptr<const Roster> roster) override;
  Round Hold() override;
  void Release() override;
  // What the open round waits for, if anybody has a seat in it.
  std::optional<ChunkWait> Explain() const override;
  std::shared_ptr<const RoundResult> Kept(Round round) const override;
  Round open_round() const override;
  uint64_t late_contributions() const override;
  size_t result_bytes() const override { return chunk_.bytes(); }

 private:
  struct Taken {
    Contribution contribution;
    uint64_t made_in = 0;  // the epoch
    std::shared_ptr<AnswerSink> sink;
    bool without_result = false;
    // Spans that are not in `contribution`, since they were not finite.
    std::vector<uint32_t> left_out;
  };
  struct Answer {
    std::shared_ptr<AnswerSink> sink;
    std::shared_ptr<const RoundResult> result;
    bool with_payload;
  };
  // What is to be said once the lock has been let go.
  struct Outbox {
    std::vector<Answer> answers;
    std::vector<ReducedChunk> reduced;
  };
  // A round's result, or what it is made of: averaged gradients in place of values.
  struct Made {
    std::shared_ptr<Slot> slot;
    Closed closed;
    uint64_t epoch = 0;
  };
  // The open round, when it waits for norms: whose contributions count is settled.
  struct ReducedRound {
    Made made;
    // The gradients have been clipped.
    bool clipped = false;
    // What the coordinator has been told.
    NormStage stage = NormStage::kGradient;
    std::vector<SquareSums> sums;
  };
  // A closed round.
  struct KeptRound {
    std::shared_ptr<const RoundResult> result;
    RoundRecord record;
  };
  enum class Pushed {
    kAnswered,  // or only its answer goes elsewhere
    kSeated,
    kAsked,  // for a round that has closed
  };

  Pushed PushLocked(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink,
                    Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why a contribution of `member`, made in epoch `made_in`, has no seat in the open
  // round.
  absl::Status CheckSeatLocked(MemberId member, uint64_t made_in, bool skip) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the member's epochs all begin after the open round.
  bool IsAheadLocked(MemberId member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives up the open round and those up to `round`.
  void SkipToLocked(Round round, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the seats of those whom a new epoch leaves out.
  void UnseatOutsidersLocked(Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers from what is kept of the rounds before the open one.
  void AnswerClosedLocked(const PushHeader& header, std::shared_ptr<AnswerSink> sink,
                          Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the open round waits for nobody, and somebody for it.
  bool CanCloseLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TryCloseLocked(Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls `ask` with the open round as its policy sees it.
  template <typename Ask>
  auto AskPolicyLocked(Ask ask) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a member of a later epoch has data: followers go on to its rounds.
  bool AnyDataLaterLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Followers who have not asked for a result that closing the open round would drop.
  std::vector<MemberId> BehindLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnybodyFollowsLocked(const Epoch& epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the open round's result, or says why there is none: of a group that needs
  // norms, the averages. Answers those whose contributions were not taken.
  absl::StatusOr<Made> MakeLocked(const Epoch& epoch, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps the open round's result, and answers with it. The next round is open.
  void KeepLocked(Made made, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The open round waits for norms from now on.
  void ReduceLocked(Made made, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a round that is reduced: whether the norms that it waits for have been given.
  bool HasNormsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Goes on with them: to the next stage, or to the end.
  void UseNormsLocked(Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellSumsLocked(NormStage stage, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ReducedChunk ReducedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the newest round that has closed has left; null if none has.
  const Slot* NewestLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WaitsForNormsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is seated and counts, in rank order.
  std::vector<Seated> SeatedLocked(const Epoch& epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The arithmetic of closing.
  absl::StatusOr<Closed> ComputeLocked(absl::Span<const Seated> contributions, Slot& slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Refuses contributions that are not finite, or leaves out such spans.
  void SetAsideNonFiniteLocked(const Epoch& epoch, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers those of whom a part was left out, which they are told.
  void AnswerLeftOutLocked(const RoundRecord& record, std::shared_ptr<const Slot> slot,
                           Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(Outbox outbox) const;
  // A contribution to a round that closes, or has closed, without it.
  void NoteLateLocked(MemberId member, Round round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same of those who are seated, and do not count.
  void SettleSeatsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerSeatsLocked(std::shared_ptr<const RoundResult> result, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The members of the open round's epoch that keep it from closing.
  std::vector<MemberId> MissingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GroupPlan& plan_;
  const ChunkId id_;
  const Chunk& chunk_;
  const Generation generation_;
  const ChunkAnswers answer_;
  const Clock& clock_;
  const std::shared_ptr<GradientAlerts> alerts_;
  SeatListener* const listener_;
  const std::function<void(ReducedChunk)> tell_reduced_;

  mutable Mutex mutex_;
  const std::unique_ptr<RoundPolicy> policy_ ABSL_PT_GUARDED_BY(mutex_);
  SlotPool pool_;
  std::shared_ptr<const Roster> roster_ ABSL_GUARDED_BY(mutex_);
  Round open_ ABSL_GUARDED_BY(mutex_);
  // Of those who have pushed to the open round, all of them members of its epoch.
  // By member, not by rank: while the round is held, its epoch may change.
  std::map<MemberId, Taken> seats_ ABSL_GUARDED_BY(mutex_);
  absl::Time open_since_ ABSL_GUARDED_BY(mutex_);
  // The open round, if it is.
  std::optional<ReducedRound> reduced_ ABSL_GUARDED_BY(mutex_);
  // The newest that the coordinator has given, of the open round or one before.
  std::optional<StepNorms> norms_ ABSL_GUARDED_BY(mutex_);
  std::optional<Round> held_from_ ABSL_GUARDED_BY(mutex_);
  // The newest round that each member has asked for.
  std::map<MemberId, Round> asked_ ABSL_GUARDED_BY(mutex_);
  // The newest rounds, newest first: as many as somebody may still ask for.
  std::deque<KeptRound> kept_ ABSL_GUARDED_BY(mutex_);
  // The newest round in which each member's contribution has counted, or was late.
  std::map<MemberId, Round> settled_ ABSL_GUARDED_BY(mutex_);
  uint64_t late_contributions_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CHUNK_ROUNDS_H_
