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

// The features of some rows.
struct ServedBatch {
  // The numbers that the model takes, row after row, in the job's dtype, without those of
  // left_out.
  std::string features;
  // Rows that could not be read: their indices in the request, ascending.
  std::vector<uint32_t> left_out;
  // For each row in left_out: why it could not be read.
  std::vector<std::string> reasons;
};

// A worker's rows, which another process reads and sends. It prepares requested rows while the
// worker computes. The caller bounds the number of requests.
//
// Must be used from one thread only.
class ServedRows {
 public:
  virtual ~ServedRows() = default;

  // The shape of a row.
  virtual const Shape& shape() const = 0;

  // Requests rows without waiting for them. Returns the request's number for Take. Errors: those
  // of Take.
  virtual absl::StatusOr<uint64_t> Ask(absl::Span<const RowId> rows, const ImageUse& use) = 0;

  // Waits for the rows of a request. Requests can be taken in any order, each of them once.
  //
  // Errors:
  //   DeadlineExceeded  the rows have not been received in time; names the server
  //   Unavailable       the server cannot be reached, or its connection is lost; names it
  //   others            errors that the server met while it read the rows
  virtual absl::StatusOr<ServedBatch> Take(uint64_t asked) = 0;

  // Drops a request that will not be taken.
  virtual void Forget(uint64_t asked) = 0;
};

// A worker's rows without their features, and the object that requests the features.
struct ServedData {
  WorkerData data;
  std::vector<std::string> features;
  std::shared_ptr<ServedRows> rows;
};

// Selects the rows to serve.
struct ServedDataRequest {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  // If not 0, all shards are served. The data is then cut into `owners` shards, unless the job
  // or the source gives their number.
  uint32_t owners = 0;
  TargetKind target_kind = TargetKind::kNone;
};

// The processes that serve rows.
class DataHost {
 public:
  virtual ~DataHost() = default;
  // Opens a worker's rows. Errors: those of ServedRows::Take.
  virtual absl::StatusOr<ServedData> Open(const ServedDataRequest& request) const = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVED_ROWS_H_
