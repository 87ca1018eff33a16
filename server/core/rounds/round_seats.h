// The seats of the open round of one chunk: the members that have pushed to the round, their
// contributions, and the streams that wait for the result.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_SEATS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_SEATS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/signals/membership.h"
#include "common/wire/frame.h"
#include "server/core/closing/closing.h"
#include "server/core/closing/contribution.h"
#include "server/core/closing/payload.h"
#include "server/core/rounds/answer_outbox.h"
#include "server/core/rounds/chunk_answers.h"
#include "server/core/rounds/gradient_alerts.h"
#include "server/core/rounds/round_result.h"
#include "server/state/slot_record.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Seats are keyed by member, not by rank, because the epoch of a round may change while the round
// is held. Every seat is removed together with its answer, which is added to an AnswerOutbox.
//
// Not thread-safe; protected by ChunkRounds::mutex_ and ChunkRounds::computing_.
class RoundSeats {
 public:
  // A seat that is taken.
  struct Seat {
    Contribution contribution;
    uint64_t made_in = 0;  // the epoch that the contribution was made in
    std::shared_ptr<AnswerSink> sink;
    bool without_result = false;
    // The spans that were removed from `contribution` because they were not finite.
    std::vector<uint32_t> left_out;
  };

  // `plan`, `answer` and `clock` must outlive this object. `chunk` is one of the plan's.
  RoundSeats(const GroupPlan& plan, ChunkId chunk, const ChunkAnswers& answer, const Clock& clock);

  // Takes the seat of the push's sender. Returns false if it was taken: the push is a retry, which
  // does not count; its stream is added to those that the answer is sent to.
  bool Take(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink> sink);

  bool empty() const { return seats_.empty(); }
  bool Has(MemberId member) const { return seats_.contains(member); }
  // Returns true if a seat has values, that is, if it is not a skip.
  bool AnyValues() const;
  const std::map<MemberId, Seat>& taken() const { return seats_; }
  // The time at which the first seat was taken. Undefined if no seat has been taken.
  absl::Time since() const { return since_; }

  // Answers all seats with `result`.
  void AnswerAll(std::shared_ptr<const RoundResult> result, AnswerOutbox& outbox);
  // Answers the seats of which spans were left out. Each answer lists these spans. `record` and
  // `slot` are those of the round's result.
  void AnswerLeftOut(const RoundRecord& record, std::shared_ptr<const Slot> slot,
                     AnswerOutbox& outbox);
  // Refuses the seats for which `check` returns an error, with that error. `round` is the open
  // round.
  void Check(Round round, absl::FunctionRef<absl::Status(MemberId, const Seat&)> check,
             AnswerOutbox& outbox);
  // Looks for NaNs and infinities in `contributions`, which are seats of members of `epoch`. As the
  // group's `non_finite` selects, refuses such seats, or removes the spans in question. Each is
  // reported to `alerts`. If all contributions are finite, a warning is added that they are too
  // large together. `round` is the open round. Returns the members of such contributions.
  std::vector<MemberId> SetAsideNonFinite(Round round, const Epoch& epoch,
                                          absl::Span<const Seated> contributions,
                                          GradientAlerts& alerts, AnswerOutbox& outbox);

 private:
  const GroupPlan& plan_;
  const ChunkId id_;
  const Chunk& chunk_;
  const ChunkAnswers& answer_;
  const Clock& clock_;

  std::map<MemberId, Seat> seats_;
  absl::Time since_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_SEATS_H_
