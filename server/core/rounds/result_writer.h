// Computes the results of one chunk's rounds and writes them to slots.
//
// Which arithmetic closes a round depends on the group's update rule, on its compression, and on
// whether there is an earlier result; server/core/closing/ has the arithmetic itself.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_RESULT_WRITER_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_RESULT_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/optim/rate_schedule.h"
#include "common/signals/membership.h"
#include "server/core/closing/closing.h"
#include "server/state/slot_record.h"
#include "server/state/slot_source.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// What the learning rate of an optimizer on the servers depends on in the rounds of an epoch.
struct EpochRate {
  // The job's learning rate factor; 1 if it does not apply to the servers.
  double factor = 1;
  uint32_t workers = 1;
};
EpochRate RateIn(const GroupSpec& spec, const Epoch& epoch);

// The optimizer of a group with an optimizer on the servers. Refers to `spec`.
ScheduledOptimizer OptimizerOf(const GroupSpec& spec, const EpochRate& rate);

// A result that has been written to its slot and has not been published.
struct WrittenResult {
  std::shared_ptr<Slot> slot;
  Closed closed;
  // The number of the epoch that the round belongs to.
  uint64_t epoch = 0;
  EpochRate rate;
  // True: the round needs norms, and the slot has the averaged gradients in place of the values.
  bool averaged_only = false;
};

// Not thread-safe; protected by ChunkRounds::mutex_ and ChunkRounds::computing_. The lock of its
// SlotPool comes after the former.
class ResultWriter {
 public:
  // `plan` must outlive this object. `chunk` is one of the plan's. `kept` is the number of results
  // that the policy keeps; see RoundPolicy. Results are stored in `source`, where the chunk has
  // this `position`; if `source` is null, in memory of the process.
  ResultWriter(const GroupPlan& plan, ChunkId chunk, Generation generation, size_t kept,
               std::shared_ptr<SlotSource> source, size_t position);

  // The rounds that a previous process has left in the source; see SlotPool::TakeKept.
  std::vector<SlotPool::Kept> TakeKept() { return pool_.TakeKept(); }

  // Computes the result of `contributions`, which are in rank order, and writes it to a slot; if
  // the round needs norms, only the averaged gradients. `epoch` is that of the round. `previous` is
  // the slot of the round before; null if no round has closed. If a value is not finite and the
  // group does not take such values, `finite` of the result is false: see WriteAgain.
  //
  // Errors:
  //   FailedPrecondition              nobody has pushed the initial parameters
  //   ResourceExhausted, Unavailable  there is no slot: see SlotPool::Acquire
  absl::StatusOr<WrittenResult> Write(const Epoch& epoch, absl::Span<const Seated> contributions,
                                      const Slot* previous);
  // Computes the result again, without the contributions or spans that were not finite, in the same
  // slot. It is final even if it is not finite.
  //
  // Errors: those of Write
  absl::Status WriteAgain(absl::Span<const Seated> contributions, const Slot* previous,
                          WrittenResult& written);
  // Returns the record of a round's result, and publishes it if its slot has room for a record.
  // Moves `written.closed` into the record.
  RoundRecord PublishResult(Round round, WrittenResult& written);

 private:
  // Runs the arithmetic and writes to the slot of `written`.
  absl::Status Compute(absl::Span<const Seated> contributions, const Slot* previous,
                       WrittenResult& written);

  const GroupPlan& plan_;
  const ChunkId id_;
  const Chunk& chunk_;
  const Generation generation_;
  SlotPool pool_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_RESULT_WRITER_H_
