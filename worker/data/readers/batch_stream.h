// Streams of batches that user code makes, of unknown length.

#ifndef SYNCGRADS_WORKER_DATA_READERS_BATCH_STREAM_H_
#define SYNCGRADS_WORKER_DATA_READERS_BATCH_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// A batch that user code has made: at least one row.
struct StreamedBatch {
  // BatchStreamOptions::features numbers for each row, row after row.
  std::vector<double> features;
  // BatchStreamOptions::targets_per_row numbers for each row, row after row: numbers, or classes
  // from 0.
  std::vector<double> targets;
};

// A stream of a worker's batches. All calls come from one thread, which is not the trainer's.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  // Returns the next batch; nullopt at the end of the stream, after which there is no further call.
  // An error ends the training of this worker.
  virtual absl::StatusOr<std::optional<StreamedBatch>> Next() = 0;
};

// The options of a stream in a job file, and the worker that it is for.
struct BatchStreamOptions {
  std::map<std::string, std::string> settings;
  size_t features = 0;
  size_t targets_per_row = 1;
  // The number of classes; 0 if targets are numbers.
  uint32_t classes = 0;
  // The job's batch_size. Batches may have other numbers of rows.
  uint32_t batch_size = 0;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  // The job's seed.
  uint64_t seed = 0;
  // The storage of the paths in `settings`.
  std::shared_ptr<const Storage> storage;
};

// Opens a stream. Must be thread-safe: the workers of a process call it in parallel.
using BatchStreamMaker =
    std::function<absl::StatusOr<std::unique_ptr<BatchStream>>(const BatchStreamOptions& options)>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_BATCH_STREAM_H_
