// The rounds of one chunk: seats, closing, and answers.
//
// One round is open at a time, the one after the newest that has closed:
//
//   open ── a member's push ──▶ its seat is taken ── everybody has a seat, or is
//   not waited for ──▶ closed: the result is made, kept, and sent to all seats
//
// Every push is answered exactly once, when its round has closed: pushes to the
// closed round at once, from what is kept. A push that is repeated finds its seat
// taken and only says where the answer is to go.
//
// A member that has ended its data and follows is not waited for in a round, but
// the round after it does not close before the follower has asked for this one:
// then two results are all that anybody can still need.
//
// Thread-safe: one mutex, which is held while a round is closed.

#ifndef SYNCGRADS_SERVER_CORE_CHUNK_ROUNDS_H_
#define SYNCGRADS_SERVER_CORE_CHUNK_ROUNDS_H_

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
#include "server/core/closing.h"
#include "server/core/contribution.h"
#include "server/core/gradient_alerts.h"
#include "server/core/roster.h"
#include "server/core/round_result.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// An open round that somebody waits for.
struct ChunkWait {
  Round round{};
  // When the first contribution came.
  absl::Time since;
  std::vector<MemberId> missing;
};

class ChunkRounds {
 public:
  // `plan` and `clock` must outlive this object. Results lie in `source`, at this
  // chunk's `position` in it, unless it is null. Where a server that died has left
  // closed rounds in it, they are kept and the next is open. `alerts` is told of
  // contributions with NaNs and infinities.
  ChunkRounds(const GroupPlan& plan, ChunkId chunk, Generation generation,
              std::shared_ptr<const Roster> roster, const Clock& clock,
              std::shared_ptr<SlotSource> source = nullptr, size_t position = 0,
              std::shared_ptr<GradientAlerts> alerts = std::make_shared<GradientAlerts>());

  // Seats a contribution, or answers it. The header has passed CheckPush.
  //
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
  void Push(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink);
  // The same, but leaves it to the caller to call Close, on any thread, if it
  // returns true: nothing else keeps the round open.
  [[nodiscard]] bool Seat(const PushHeader& header, Payload payload,
                          std::shared_ptr<AnswerSink> sink);
  // Closes the open round unless it waits for somebody.
  void Close();

  // Takes note of a change of membership, which may close the open round.
  void SetRoster(std::shared_ptr<const Roster> roster);

  // Neither the round that is returned, the oldest without a contribution, nor a
  // later one is closed until Release.
  Round Hold();
  void Release();

  // What the open round waits for, if anybody has a seat in it.
  std::optional<ChunkWait> Explain() const;

  // The result of a round that has closed; null if it is not kept any more. Its slot
  // is not written again while the result is held.
  std::shared_ptr<const RoundResult> Kept(Round round) const;

  // All rounds before this one have closed.
  Round open_round() const;

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
  using Answers = std::vector<Answer>;

  // Whether the push has to be followed by an attempt to close.
  bool PushLocked(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink,
                  Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why a contribution of `member`, made in epoch `made_in`, has no seat in the open
  // round.
  absl::Status CheckSeatLocked(MemberId member, uint64_t made_in, bool skip) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the member's epochs all begin after the open round.
  bool IsAheadLocked(MemberId member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives up the open round and those up to `round`.
  void SkipToLocked(Round round, Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the seats of those whom a new epoch leaves out.
  void UnseatOutsidersLocked(Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSenderLocked(const PushHeader& header, const Roster::Entry* sender) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers from what is kept of the rounds before the open one.
  void AnswerClosedLocked(const PushHeader& header, std::shared_ptr<AnswerSink> sink,
                          Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the open round waits for nobody, and somebody for it.
  bool CanCloseLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TryCloseLocked(Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the open round waits for this member: for its contribution, or, if it
  // follows, for it to have asked for a result that closing would drop.
  bool WaitsForLocked(MemberId member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a member that has data for the open round has a seat in it.
  bool AnyDataLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a member of a later epoch has data: followers go on to its rounds.
  bool AnyDataLaterLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnybodyFollowsLocked(const Epoch& epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the open round's result, or says why there is none. Answers those whose
  // contributions were not taken, or not as they were.
  absl::StatusOr<std::shared_ptr<const RoundResult>> CloseLocked(const Epoch& epoch,
                                                                 Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is seated, in rank order.
  std::vector<Seated> SeatedLocked(const Epoch& epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The arithmetic of closing.
  absl::StatusOr<Closed> ComputeLocked(absl::Span<const Seated> contributions, Slot& slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Refuses contributions that are not finite, or leaves out such spans.
  void SetAsideNonFiniteLocked(const Epoch& epoch, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers those of whom a part was left out, which they are told.
  void AnswerLeftOutLocked(const RoundRecord& record, std::shared_ptr<const Slot> slot,
                           Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Send(Answers answers);
  // What is sent of a closed round, to those of whose contributions `left_out` was
  // left out.
  std::shared_ptr<const RoundResult> ResultOf(RoundRecord record, std::shared_ptr<const Slot> slot,
                                              std::vector<uint32_t> left_out = {}) const;
  void AnswerSeatsLocked(std::shared_ptr<const RoundResult> result, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The members of the open round's epoch that keep it from closing.
  std::vector<MemberId> MissingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const RoundResult> Refusal(Round round, const absl::Status& error) const;
  UpdateHeader HeaderOf(Round round) const;

  const GroupPlan& plan_;
  const ChunkId id_;
  const Chunk& chunk_;
  const Generation generation_;
  const Clock& clock_;
  const std::shared_ptr<GradientAlerts> alerts_;
  SlotPool pool_;

  mutable Mutex mutex_;
  std::shared_ptr<const Roster> roster_ ABSL_GUARDED_BY(mutex_);
  Round open_ ABSL_GUARDED_BY(mutex_);
  // Of those who have pushed to the open round, all of them members of its epoch.
  // By member, not by rank: while the round is held, its epoch may change.
  std::map<MemberId, Taken> seats_ ABSL_GUARDED_BY(mutex_);
  absl::Time open_since_ ABSL_GUARDED_BY(mutex_);
  std::optional<Round> held_from_ ABSL_GUARDED_BY(mutex_);
  // The newest round that each member has asked for.
  std::map<MemberId, Round> asked_ ABSL_GUARDED_BY(mutex_);
  // The results of the newest round and, while somebody follows, the one before.
  std::shared_ptr<const RoundResult> newest_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const RoundResult> before_newest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CHUNK_ROUNDS_H_
