// Selects the rows that a worker trains on in each step.

#ifndef SYNCGRADS_WORKER_BATCHES_BATCHES_H_
#define SYNCGRADS_WORKER_BATCHES_BATCHES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "proto/job.pb.h"
#include "worker/batches/data_set.h"
#include "worker/data/data_segment.h"
#include "worker/data/loader.h"

namespace syncgrads {

// There is one implementation for each data mode, SHARDS and DYNAMIC. The trainer owns the
// object. Not thread-safe.
class Batches {
 public:
  virtual ~Batches() = default;

  // Whether this worker has no rows left after the steps made so far.
  virtual bool ended() const = 0;
  // Returns this worker's rows of the next step, if its members are `members`; may be
  // empty. Until Advance, calls with the same members return the same rows.
  virtual std::vector<RowId> RowsFor(const StepMembers& members) = 0;
  // Returns this worker's rows of the step `steps` (at least 1) after the next one, for
  // reading ahead; empty if they are not known yet.
  virtual std::vector<RowId> RowsAhead(size_t steps) = 0;
  // Moves on to the following step. `outcome` is that of the step just made.
  virtual void Advance(const StepOutcome& outcome) = 0;
  // Returns the total number of steps with this many workers, exactly or approximately.
  // Steps made before this run count.
  virtual uint64_t StepsWith(uint32_t workers) const = 0;

  // Whether the rows of a step depend on its members.
  virtual bool depends_on_members() const = 0;
  // Returns the tensors that a newcomer or a resumed run copies to continue at the same
  // position. They point into this object.
  virtual std::vector<NamedTensor> state() = 0;
  // Called after state() has been overwritten with the state after `steps` steps, of
  // another worker or of a checkpoint: continues from there.
  virtual void ContinueAfter(uint64_t steps) = 0;
  // Returns what a resumed run needs, besides state(), to continue after `steps` steps.
  virtual std::vector<DataSegment> HistoryAfter(uint64_t steps) const = 0;
};

// How the shards are divided among the workers.
struct ShardOwners {
  // The number of workers that own shards.
  uint32_t workers = 1;
  // Set if `data` has all shards, as in an elastic job: this worker uses those of `rank`
  // only. nullopt: it uses all shards of `data`.
  std::optional<uint32_t> rank;
  // Set if every worker trains on all rows: the number of its order of them.
  std::optional<uint32_t> own_order;
  // The manifest's history if the run resumes from a checkpoint; otherwise empty.
  std::vector<DataSegment> history;
};

// Creates the batches for the job's data mode. `data` outlives them.
//
// Errors:
//   InvalidArgument  the worker has no shard, or batch_size is less than its number of
//                    shards
absl::StatusOr<std::unique_ptr<Batches>> MakeBatches(const v1::JobFile& job, const DataSet& data,
                                                     const ShardOwners& owners);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BATCHES_BATCHES_H_
