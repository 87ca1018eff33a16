// The versions of one chunk whose members do not wait for each other's
// contributions: an optimizer applies each as it comes, and makes a version of it.
//
// A member's pushes are numbered by its own clock, in place of a round: 1, 2, ...
// Push 0 is the first parameters, which one member gives and the others wait for.
//
//   a push at clock t ── it is applied, unless the chunk's clock of this member is t
//   or more ──▶ a version with that clock ── every member that has data has come to
//   clock t - bound ──▶ answered with the newest version
//
// Clocks are kept with the values: a push that is repeated is applied once, whatever
// dies in between. A member that has ended its data and follows is answered when all
// have, with the last version; what it pushes after that, with OutOfRange.

#ifndef SYNCGRADS_SERVER_CORE_CHUNK_VERSIONS_H_
#define SYNCGRADS_SERVER_CORE_CHUNK_VERSIONS_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

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
#include "server/core/round_result.h"
#include "server/core/served_chunk.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Thread-safe: one mutex, which is held while a contribution is applied.
class ChunkVersions : public ServedChunk {
 public:
  // The plan has an optimizer and the policy Staleness. It and `clock` must outlive
  // this object. Versions lie in `source`, as results do in ChunkRounds. `alerts` is
  // told of contributions with NaNs and infinities.
  ChunkVersions(const GroupPlan& plan, ChunkId chunk, Generation generation,
                std::shared_ptr<const Roster> roster, const Clock& clock,
                std::shared_ptr<SlotSource> source = nullptr, size_t position = 0,
                std::shared_ptr<GradientAlerts> alerts = std::make_shared<GradientAlerts>());

  // Answers instead of parameters:
  //   FailedPrecondition  the sender is gone, or of another incarnation; there are no
  //                       parameters yet, or nobody is left who could give them; or it
  //                       has ended and contributes values
  //   OutOfRange          all members that had data have ended or gone
  //   ResourceExhausted   there is no room for a version
  //   InvalidArgument     it has a NaN or an infinity, which the group refuses; it
  //                       counts as a skip
  [[nodiscard]] bool Seat(const PushHeader& header, Payload payload,
                          std::shared_ptr<AnswerSink> sink) override;
  void Close() override;

  void SetRoster(std::shared_ptr<const Roster> roster) override;
  // Epochs begin whatever members are doing.
  Round Hold() override { return Round{1}; }
  void Release() override {}
  std::optional<ChunkWait> Explain() const override;
  // The clock that the slowest member with data is to come to next.
  Round open_round() const override;
  size_t result_bytes() const override { return chunk_.bytes(); }

 private:
  struct Waiting {
    Round clock{};
    std::shared_ptr<AnswerSink> sink;
    bool without_result = false;
    bool skip = false;
    absl::Time since;
    // Spans that it does not contribute to; and of the others, those that have not been
    // applied, since they were not finite.
    std::vector<uint32_t> absent, left_out;
  };
  struct Pending {
    MemberId member{};
    Round clock{};
    Contribution contribution;
  };
  struct Answer {
    std::shared_ptr<AnswerSink> sink;
    std::shared_ptr<const RoundResult> result;
    bool with_payload;
  };
  using Answers = std::vector<Answer>;

  absl::Status CheckPushLocked(const PushHeader& header) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies what is pending, and answers whoever need not wait.
  void AdvanceLocked(Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether every member waits for first parameters.
  bool NobodyGivesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ApplyLocked(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the version after the newest into `slot`, without what is not finite in the
  // contribution.
  absl::StatusOr<Closed> UpdateLocked(Pending& pending, Slot& slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Leaves out spans that are not finite, or says that the contribution is refused.
  absl::Status SetAsideNonFiniteLocked(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Round ClockOfLocked(MemberId member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Members with data whose clock is before `clock`. One that has left is not among
  // them: its pushes were answered before.
  std::vector<MemberId> BehindLocked(Round clock) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyDataLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whom a push waits for; nobody if it can be answered.
  std::vector<MemberId> AwaitedLocked(MemberId member, const Waiting& waiting) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const RoundResult> AnswerLocked(MemberId member, const Waiting& waiting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The learning rate's factor for what a member pushes now.
  double RateFactorLocked(MemberId member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GroupPlan& plan_;
  const ChunkId id_;
  const Chunk& chunk_;
  const Generation generation_;
  const ChunkAnswers answer_;
  const Optimizer& optimizer_;
  const Staleness staleness_;
  const Clock& clock_;
  const std::shared_ptr<GradientAlerts> alerts_;

  mutable Mutex mutex_;
  SlotPool pool_;
  std::shared_ptr<const Roster> roster_ ABSL_GUARDED_BY(mutex_);
  // The newest version; null before the first parameters.
  std::shared_ptr<const Slot> newest_ ABSL_GUARDED_BY(mutex_);
  RoundRecord record_ ABSL_GUARDED_BY(mutex_);
  // Pushes that are applied, or contributed nothing.
  std::map<MemberId, Round> clocks_ ABSL_GUARDED_BY(mutex_);
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::map<MemberId, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  // The version that each member was given last.
  std::map<MemberId, Round> read_ ABSL_GUARDED_BY(mutex_);
  // The push of each follower that was answered with the last version.
  std::map<MemberId, Round> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CHUNK_VERSIONS_H_
