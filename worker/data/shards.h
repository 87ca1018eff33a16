// A job's data, cut into shards that are shared out among its workers.

#ifndef SYNCGRADS_WORKER_DATA_SHARDS_H_
#define SYNCGRADS_WORKER_DATA_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/data/custom_readers.h"
#include "worker/data/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// Rows from `begin` to below `end`.
struct RowRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t rows() const { return end - begin; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

// The ranges of `rows` rows in `shards` (at least 1) shards. CEIL: ceil(rows /
// shards) each, the last ones short or empty; FLOOR: floor(rows / shards) each,
// the tail dropped.
std::vector<RowRange> SplitRows(uint64_t rows, uint32_t shards, v1::DataSpec::Split split);

// The shards that worker `rank` of `world_size` takes: rank, rank + world_size, ...
std::vector<uint32_t> ShardsOf(uint32_t shards, uint32_t rank, uint32_t world_size);

// One shard, with all its rows in the order of the source.
struct Shard {
  // Among all shards of the job.
  uint32_t number = 0;
  Table table;
};

// A worker's part of the data: at least one shard, any of which may be empty.
struct WorkerData {
  // In the order of their numbers.
  std::vector<Shard> shards;
  // Of the job.
  uint32_t total_shards = 0;
};

// Whether the source has shards of its own: directories shard0, shard1, ... . Errors:
// as LoadShards.
absl::StatusOr<bool> HasShardDirectories(const v1::DataSpec& spec, const Storage& storage);

// Reads the shards of worker `rank` of `world_size`. `spec` is one that
// ParseJobFile has let pass; its paths are in `storage`.
//
// Errors:
//   InvalidArgument  more workers than shards, or another number of shards than
//                    there are shard directories (with both numbers); a source
//                    that is a directory without `file`, or a file with one; or as
//                    the reader of the source
//   NotFound         a file or a shard directory is missing
//   others           as the reader
absl::StatusOr<WorkerData> LoadShards(const v1::DataSpec& spec,
                                      const std::shared_ptr<const Storage>& storage,
                                      TargetKind target_kind, uint32_t rank, uint32_t world_size,
                                      const CustomReaders& readers = NoCustomReaders());

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SHARDS_H_
