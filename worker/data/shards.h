// Cuts a job's data into shards and divides them among the workers.

#ifndef SYNCGRADS_WORKER_DATA_SHARDS_H_
#define SYNCGRADS_WORKER_DATA_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "worker/data/readers/custom_readers.h"
#include "worker/data/readers/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// The most shards that data is cut into.
inline constexpr uint32_t kMostShards = 1 << 20;

// Cuts `rows` rows into `shards` shards, at least 1, as `spec` requests with `split` and
// `partition`. Returns the rows of the shards `numbers`, each in ascending order. They are the same
// for every job seed, so that the held-out rows are, too.
//
// KEEP_REMAINDER: ceil(rows / shards) rows each; the last shards have fewer, or none.
// DROP_REMAINDER: floor(rows / shards) rows each; the rows left over are dropped.
std::vector<std::vector<size_t>> SplitRows(size_t rows, uint32_t shards,
                                           absl::Span<const uint32_t> numbers,
                                           const v1::DataSpec& spec);

// The shards of worker `rank` of `world_size`: rank, rank + world_size, ...
std::vector<uint32_t> ShardsOf(uint32_t shards, uint32_t rank, uint32_t world_size);

// One shard, with all its rows in the order of the source.
struct Shard {
  // The number among all shards of the job.
  uint32_t number = 0;
  Table table;
};

// The data of one worker: at least one shard. Shards may be empty.
struct WorkerData {
  // In ascending order of their numbers.
  std::vector<Shard> shards;
  // The number of shards of the job.
  uint32_t total_shards = 0;
};

// Whether the source is a directory with directories shard0, shard1 and so on. Errors: those of
// LoadShards.
absl::StatusOr<bool> HasShardDirectories(const v1::DataSpec& spec, const Storage& storage);

// The shards that a worker reads.
struct ShardRequest {
  TargetKind target_kind = TargetKind::kNone;
  uint32_t rank = 0;
  uint32_t world_size = 1;
};

// Reads the shards of `request`. `spec` must have passed ParseJobFile; its paths are in `storage`.
//
// Errors:
//   InvalidArgument  more workers than shards; more than kMostShards shards to cut the data into;
//                    a number of shards in `spec` that is not the number of shard directories
//                    (names both); a directory as source without `file`, or a file as source with
//                    it; or an error of the source's reader
//   NotFound         a file or a shard directory is missing
//   others           those of the reader
absl::StatusOr<WorkerData> LoadShards(const v1::DataSpec& spec,
                                      const std::shared_ptr<const Storage>& storage,
                                      const ShardRequest& request,
                                      const CustomReaders& readers = NoCustomReaders());

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SHARDS_H_
