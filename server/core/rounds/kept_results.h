// The results of the newest closed rounds of one chunk, and which members may still request them.
//
// A push to a closed round is a request for its result. It is answered at once, from the kept
// results. A result is dropped when as many newer rounds have closed as the policy keeps results,
// or earlier if no member can request it.
//
// If k results are kept (k at least 2), round t does not close before every follower has requested
// round t - k + 1; see Behind. So each follower has received every result that is dropped. A
// follower is a member that has ended its data and still requests results.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_KEPT_RESULTS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_KEPT_RESULTS_H_

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/plan/roster.h"
#include "server/core/rounds/answer_outbox.h"
#include "server/core/rounds/chunk_answers.h"
#include "server/core/rounds/round_policy.h"
#include "server/core/rounds/round_result.h"
#include "server/state/slot_record.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Not thread-safe; protected by ChunkRounds::mutex_.
class KeptResults {
 public:
  // `plan` and `answer` must outlive this object. `policy` is the group's; it is only read here.
  KeptResults(const GroupPlan& plan, const ChunkAnswers& answer, const RoundPolicy& policy);

  // Adds the next older one of the results that a previous process has left. To be called before
  // the other functions.
  void Restore(RoundRecord record, std::shared_ptr<const Slot> slot);

  // Drops results until there is room for another one. To be called before a round is closed: the
  // result of that round may be written to the slot of a result that is dropped. The newest result
  // stays, because the next one may be computed from it.
  void MakeRoom();
  // Keeps the result of the round that has just closed, and drops those that no member of its epoch
  // can request.
  void Add(std::shared_ptr<const RoundResult> result, RoundRecord record, const Roster& roster);

  // Null if the result of the round is not kept.
  std::shared_ptr<const RoundResult> Find(Round round) const;
  // The newest closed round; nullopt if no round has closed.
  std::optional<Round> newest_round() const;
  // The slot of the newest closed round; null if no round has closed.
  const Slot* newest_slot() const;

  // A member has pushed to `round`, which is open or closed. The member has therefore received the
  // results that it wants of all rounds before.
  void Request(MemberId member, Round round);
  // Answers a push to a closed round. `open` is the open round.
  void Answer(const PushHeader& header, Round open, std::shared_ptr<AnswerSink> sink,
              AnswerOutbox& outbox) const;
  // Followers in the epoch of `open`, the open round, that may still request a result that closing
  // it would drop.
  std::vector<MemberId> Behind(Round open, const Roster& roster) const;

  // Removes the records of the members for which `has_gone` returns true.
  void Forget(absl::FunctionRef<bool(MemberId)> has_gone);

 private:
  struct Kept {
    std::shared_ptr<const RoundResult> result;
    RoundRecord record;
  };

  const GroupPlan& plan_;
  const ChunkAnswers& answer_;
  // See RoundPolicy.
  const size_t limit_;
  const bool leaves_behind_;

  // Newest first.
  std::deque<Kept> kept_;
  // The newest round that each member has requested.
  std::map<MemberId, Round> requested_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_KEPT_RESULTS_H_
