// Which rows a worker trains on in each step.

#ifndef SYNCGRADS_WORKER_TRAIN_BATCHES_H_
#define SYNCGRADS_WORKER_TRAIN_BATCHES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "proto/job.pb.h"
#include "worker/data/data_segment.h"
#include "worker/data/loader.h"
#include "worker/train/data_set.h"

namespace syncgrads {

// The two modes of a job's data. Not thread-safe.
class Batches {
 public:
  virtual ~Batches() = default;

  // This worker has no rows after the steps that have been made.
  virtual bool ended() const = 0;
  // This worker's rows of the next step, which is one of `members`; may be empty.
  // Asked again, the same for the same members.
  virtual std::vector<RowId> RowsFor(const StepMembers& members) = 0;
  // Those of the step `steps` (at least 1) after the next, if they are known: for
  // reading ahead.
  virtual std::vector<RowId> RowsAhead(size_t steps) = 0;
  // That step has been made.
  virtual void Advance(const StepOutcome& outcome) = 0;
  // How many steps there are, or about as many, with so many workers; those before
  // this run are counted.
  virtual uint64_t StepsWith(uint32_t workers) const = 0;

  // Whether rows depend on who is a member.
  virtual bool depends_on_members() const = 0;
  // What a newcomer needs to go on from where the others are.
  virtual std::vector<NamedTensor> state() = 0;
  // A newcomer has its state, which is that after `steps` steps.
  virtual void GoOnAfter(uint64_t steps) = 0;
  // What a later run needs to go on after `steps` steps, beside state().
  virtual std::vector<DataSegment> HistoryAfter(uint64_t steps) const = 0;
};

// How the shards are shared out.
struct ShardOwners {
  uint32_t workers = 1;
  // In an elastic job the data has all shards: of them a worker takes those of
  // `rank` of `workers`, or all if it is absent.
  std::optional<uint32_t> rank;
  // As the checkpoint says that the run goes on from.
  std::vector<DataSegment> history;
};

// As the job says. `data` outlives the batches.
//
// Errors:
//   InvalidArgument  as Loader::Create
absl::StatusOr<std::unique_ptr<Batches>> MakeBatches(const v1::JobFile& job, const DataSet& data,
                                                     const ShardOwners& owners);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_BATCHES_H_
