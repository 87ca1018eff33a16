// Makes batches ready ahead of time.

#ifndef SYNCGRADS_WORKER_TRAIN_BATCH_READER_H_
#define SYNCGRADS_WORKER_TRAIN_BATCH_READER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data_set.h"

namespace syncgrads {

// Whoever begins batches bounds how many there are, and so the memory. T is float or
// double.
//
// For one thread.
template <typename T>
class BatchReader {
 public:
  virtual ~BatchReader() = default;

  // Reads `rows` in the background; a `batch` that has been begun already goes on.
  //
  // Errors: as Take.
  virtual absl::Status Begin(uint64_t batch, const std::vector<RowId>& rows,
                             const ImageUse& use) = 0;

  // As FillBatch, for what was begun as `batch`; it can be taken once.
  //
  // Errors:
  //   DeadlineExceeded  it was not there in time; names the first image, or the server
  //   others            as FillBatch
  virtual absl::Status Take(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                            DamagedImages* damaged) = 0;

  // Whether Take would return at once; false where that cannot be told.
  virtual bool IsRead(uint64_t batch) = 0;

  // Gives up what was begun of the batches with lower numbers than this.
  virtual void ForgetBefore(uint64_t batch) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_BATCH_READER_H_
