// Rows that another process has read.

#ifndef SYNCGRADS_WORKER_DATA_SERVED_ROWS_H_
#define SYNCGRADS_WORKER_DATA_SERVED_ROWS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/image_source.h"
#include "worker/data/loader.h"
#include "worker/data/shards.h"

namespace syncgrads {

// Features of some rows.
struct ServedBatch {
  // As the model takes them, row after row, in the job's dtype.
  std::string features;
  // Positions among the rows that were asked for, ascending: they could not be read.
  std::vector<uint32_t> left_out;
  // Why, for each of those.
  std::vector<std::string> reasons;
};

// A worker's rows, on their way from whoever has read them. What is asked for is made
// ready while the worker does something else; whoever asks bounds how much that is.
//
// For one thread.
class ServedRows {
 public:
  virtual ~ServedRows() = default;

  // What a row is.
  virtual const Shape& shape() const = 0;

  // Asks for rows without waiting; returns what to take them by. Errors: as Take.
  virtual absl::StatusOr<uint64_t> Ask(absl::Span<const RowId> rows, const ImageUse& use) = 0;

  // Waits for what was asked for, in any order; each can be taken once.
  //
  // Errors:
  //   DeadlineExceeded  it has not come in time; names the server
  //   Unavailable       the server is gone, or cannot be reached; names it
  //   others            as the server has met them
  virtual absl::StatusOr<ServedBatch> Take(uint64_t asked) = 0;

  // It will not be taken.
  virtual void Forget(uint64_t asked) = 0;
};

// What there is of a worker's rows on this side: all but their features.
struct ServedData {
  WorkerData data;
  std::vector<std::string> features;
  std::shared_ptr<ServedRows> rows;
};

// Whose rows.
struct ServedDataRequest {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  // If it is not 0, all shards, of which so many workers may be owners.
  uint32_t owners = 0;
  TargetKind target_kind = TargetKind::kNone;
};

// Where rows are served.
class DataHost {
 public:
  virtual ~DataHost() = default;
  // Errors: as ServedRows::Take.
  virtual absl::StatusOr<ServedData> Open(const ServedDataRequest& request) const = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVED_ROWS_H_
