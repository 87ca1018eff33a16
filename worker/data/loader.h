// The batches that a worker trains on.

#ifndef SYNCGRADS_WORKER_DATA_LOADER_H_
#define SYNCGRADS_WORKER_DATA_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/data/data_segment.h"
#include "worker/data/shards.h"

namespace syncgrads {

// A row of one of a worker's shards.
struct RowId {
  // Position in WorkerData::shards.
  size_t shard = 0;
  size_t row = 0;
  friend bool operator==(const RowId&, const RowId&) = default;
};

// Whether a row of a shard is held out: every `every`-th, from the first on; none
// if it is 0.
constexpr bool IsHeldOut(size_t row, uint32_t every) { return every != 0 && row % every == 0; }

// The rows of one part of a worker's data, in order: those held out, or the rest.
std::vector<RowId> RowsOf(const WorkerData& data, uint32_t holdout_every, bool held_out);

// The rows of one shard, pass after pass. The order of a pass is a function of
// (seed, pass, number of the shard) alone.
//
// Not thread-safe.
class ShardStream {
 public:
  // `rows` are the shard's rows that are not held out. There is no end if `passes`
  // is 0 and there are rows.
  ShardStream(uint64_t seed, uint32_t number, std::vector<size_t> rows, v1::DataSpec::Order order,
              uint64_t passes);

  // Appends the next rows, at most `count`: fewer where a pass ends, none when all
  // have.
  void Draw(size_t count, std::vector<size_t>& rows);

  // As so many draws of `count` rows each.
  void Skip(size_t count, uint64_t draws);

  // How many draws of `count` rows there are until the end, if there is one.
  std::optional<uint64_t> DrawsUntilEnd(size_t count) const;

 private:
  void BeginPass();

  const uint64_t seed_;
  const uint32_t number_;
  const std::vector<size_t> rows_;
  const v1::DataSpec::Order order_;
  const uint64_t passes_;
  uint64_t pass_ = 0;  // that `current_` is of
  std::vector<size_t> current_;
  size_t next_ = 0;
};

// A worker's batches. A batch takes an equal part from each of the worker's
// shards (the first ones take one more each where it does not divide evenly), so
// that workers with a shard each and one worker with all of these shards see the
// same rows in each step.
//
// Not thread-safe.
class Loader {
 public:
  struct Options {
    uint64_t seed = 0;
    uint32_t batch_size = 0;
    uint32_t holdout_every = 0;
    v1::DataSpec::Order order = v1::DataSpec::SHUFFLED;
    // The shards to take from, as positions in WorkerData::shards; empty: all.
    std::vector<size_t> shards;
    // One of the two is not 0: passes over the data, or steps.
    uint64_t epochs = 0;
    uint64_t steps = 0;
    // What has been used already, by whichever workers.
    std::vector<DataSegment> history;
  };

  // InvalidArgument if batch_size is less than the number of shards.
  static absl::StatusOr<Loader> Create(const WorkerData& data, const Options& options);

  // How many batches there are in all, after the history.
  uint64_t steps() const { return steps_; }

  // The next batch's rows: at least one, or none after the last batch.
  std::vector<RowId> Next();

 private:
  Loader() = default;

  // Positions in WorkerData::shards.
  std::vector<size_t> shards_;
  std::vector<ShardStream> streams_;
  // Rows that a batch takes from each shard.
  std::vector<size_t> parts_;
  uint64_t steps_ = 0;
  uint64_t done_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_LOADER_H_
