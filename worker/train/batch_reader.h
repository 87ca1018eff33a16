// Reads the rows of batches ahead of time.

#ifndef SYNCGRADS_WORKER_TRAIN_BATCH_READER_H_
#define SYNCGRADS_WORKER_TRAIN_BATCH_READER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data_set.h"

namespace syncgrads {

// Prepares batches in the background while the trainer computes. The caller of Begin
// bounds the number of batches, and so the memory. T is float or double.
//
// Not thread-safe: the trainer's thread calls it.
template <typename T>
class BatchReader {
 public:
  virtual ~BatchReader() = default;

  // Starts to read `rows` as the batch with number `batch`. Does nothing if that batch
  // has been started already.
  //
  // Errors: those of Take.
  virtual absl::Status Begin(uint64_t batch, const std::vector<RowId>& rows,
                             const ImageUse& use) = 0;

  // Waits for a batch that Begin has started, and sets `features`, `targets` and
  // `damaged` as FillBatch does. Each batch can be taken once.
  //
  // Errors:
  //   DeadlineExceeded  the batch was not ready in time; names its first missing image, or
  //                     the server
  //   Internal          the batch has not been started
  //   others            the errors of FillBatch
  virtual absl::Status Take(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                            DamagedImages* damaged) = 0;

  // Whether Take would return at once; false if this is unknown.
  virtual bool IsRead(uint64_t batch) = 0;

  // Discards the batches with lower numbers than `batch`.
  virtual void ForgetBefore(uint64_t batch) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_BATCH_READER_H_
