// The batches that a worker trains on (data.mode SHARDS).

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
  // Index in WorkerData::shards.
  size_t shard = 0;
  size_t row = 0;
  friend bool operator==(const RowId&, const RowId&) = default;
};

// Whether a row of a shard is held out for the validation set: row 0, `every`, 2 * `every` and
// so on. If `every` is 0, no row is.
constexpr bool IsHeldOut(size_t row, uint32_t every) { return every != 0 && row % every == 0; }

// The rows of the validation set (`held_out`), or all other rows, of a worker's data, in order.
std::vector<RowId> RowsOf(const WorkerData& data, uint32_t validation_every, bool held_out);

// The rows of one shard, pass after pass. The order of a pass is a function of the seed, the
// pass and the number of the shard.
//
// Not thread-safe.
class ShardStream {
 public:
  // `rows` are the rows of the shard that are not held out. If `passes` is 0 and there are rows,
  // the stream has no end.
  ShardStream(uint64_t seed, uint32_t number, std::vector<size_t> rows, v1::DataSpec::Order order,
              uint64_t passes);

  // Appends the next rows, at most `count`: fewer at the end of a pass, none after the last
  // pass.
  void Draw(size_t count, std::vector<size_t>& rows);

  // Skips `draws` draws of `count` rows each; fewer if a stream of `passes` passes had ended before
  // (0: it had no end).
  void Skip(size_t count, uint64_t draws, uint64_t passes);

  // The number of draws of `count` rows until the end; nullopt if there is no end.
  std::optional<uint64_t> DrawsUntilEnd(size_t count) const;

 private:
  void BeginPass();
  bool IsAtEnd() const;

  const uint64_t seed_;
  const uint32_t number_;
  const std::vector<size_t> rows_;
  const v1::DataSpec::Order order_;
  const uint64_t passes_;
  uint64_t pass_ = 0;  // the pass of `current_`
  std::vector<size_t> current_;
  size_t next_ = 0;
};

// The batches of one worker. A batch has an equal number of rows of each of the worker's shards;
// if it does not divide evenly, the first shards give one row more. So a worker with several
// shards uses the same rows in a step as several workers with one of these shards each.
//
// Not thread-safe.
class Loader {
 public:
  struct Options {
    uint64_t seed = 0;
    uint32_t batch_size = 0;
    uint32_t validation_every = 0;
    v1::DataSpec::Order order = v1::DataSpec::SHUFFLED;
    // The shards to use, as indices in WorkerData::shards; empty: all of them.
    std::vector<size_t> shards;
    // The number of passes over the data, or of steps. One of the two is not 0.
    uint64_t epochs = 0;
    uint64_t steps = 0;
    // Whether every worker uses all shards, in the steps of the history too.
    bool all_shards = false;
    // The steps before the first batch; their rows have been used by the workers of that time.
    std::vector<DataSegment> history;
  };

  // InvalidArgument if batch_size is less than the number of shards.
  static absl::StatusOr<Loader> Create(const WorkerData& data, const Options& options);

  // The number of batches that follow the history.
  uint64_t steps() const { return steps_; }

  // The rows of the next batch: at least one, or none after the last batch.
  std::vector<RowId> Next();

 private:
  Loader() = default;

  // Indices in WorkerData::shards.
  std::vector<size_t> shards_;
  std::vector<ShardStream> streams_;
  // The number of rows in a batch from each shard.
  std::vector<size_t> parts_;
  uint64_t steps_ = 0;
  uint64_t done_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_LOADER_H_
