// Rows that are read in the background.

#ifndef SYNCGRADS_WORKER_DATA_ROW_SOURCE_H_
#define SYNCGRADS_WORKER_DATA_ROW_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/images/image_source.h"
#include "worker/data/loader.h"
#include "worker/data/shards.h"

namespace syncgrads {

// The features of some rows.
struct RowBatch {
  // True: the features are pixels of 8 bits, which the receiver normalises. False: they are the
  // numbers that the model takes, in the job's dtype.
  bool has_bytes = false;
  // Row after row, without those of left_out.
  std::string features;
  // Set if the rows' targets come with them and not from their table: a stream of batches.
  bool has_targets = false;
  std::vector<double> targets;
  // Rows that could not be read: their indices in the request, ascending.
  std::vector<uint32_t> left_out;
  // For each row in left_out: why it could not be read. The message names the image.
  std::vector<absl::Status> reasons;
};

// Reads requested rows while the caller computes: rows of this process, or rows that another
// process reads and sends. The caller bounds the number of requests, and so the memory.
//
// Must be used from one thread only.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Requests rows without waiting for them. Returns the request's number for Take. Errors: those
  // of Take.
  virtual absl::StatusOr<uint64_t> Ask(absl::Span<const RowId> rows, const ImageUse& use) = 0;

  // Waits for the rows of a request. Requests can be taken in any order, each of them once. Images
  // that cannot be read are left out (see IsDamagedImage).
  //
  // Errors:
  //   DeadlineExceeded   the rows were not ready in time; names the first missing image, or the
  //                      server
  //   ResourceExhausted  not enough memory to read an image; names it
  //   Unavailable        the server cannot be reached, or its connection is lost; names it
  //   others             any other error of reading the rows
  virtual absl::StatusOr<RowBatch> Take(uint64_t asked) = 0;

  // Whether Take would return at once; false if this is unknown.
  virtual bool IsRead(uint64_t asked) = 0;

  // Drops a request that will not be taken.
  virtual void Forget(uint64_t asked) = 0;

  // Takes back the memory of a batch, for a later one.
  virtual void Reuse(std::string features) = 0;
};

// Whether an error of reading an image is a fault of the image and not of the system.
bool IsDamagedImage(const absl::Status& status);

// A worker's rows without their features, and the object that requests the features.
struct ServedData {
  WorkerData data;
  std::vector<std::string> features;
  // The shape of a row.
  Shape shape;
  std::shared_ptr<RowSource> rows;
};

// Selects the rows to serve.
struct ServedDataRequest {
  // Also selects one of several processes.
  uint32_t rank = 0;
  uint32_t world_size = 1;
  // If not 0, all shards are served. The data is then cut into `owners` shards, unless the job
  // or the source gives their number.
  uint32_t owners = 0;
  TargetKind target_kind = TargetKind::kNone;
  v1::DataSpec::Partition partition = v1::DataSpec::PERMUTED;
  v1::DataSpec::Split split = v1::DataSpec::KEEP_REMAINDER;
};

// The processes that serve rows.
class DataHost {
 public:
  virtual ~DataHost() = default;
  // Opens a worker's rows. Errors: those of RowSource::Take.
  virtual absl::StatusOr<ServedData> Open(const ServedDataRequest& request) const = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_ROW_SOURCE_H_
