// Reads images ahead on background threads.

#ifndef SYNCGRADS_WORKER_TRAIN_IMAGE_BATCH_READER_H_
#define SYNCGRADS_WORKER_TRAIN_IMAGE_BATCH_READER_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/train/batch_reader.h"
#include "worker/train/data_set.h"

namespace syncgrads {

struct ImageBatchReaderOptions {
  int threads = 1;
  // How long Take waits for a batch.
  absl::Duration timeout = absl::Seconds(60);
};

// Several threads read images while the trainer computes, and write them directly into
// the matrix that Take returns. The trainer's thread calls the methods. Not thread-safe.
template <typename T>
class ImageBatchReader : public BatchReader<T> {
 public:
  // The rows of `data` are images. `data` outlives the reader.
  ImageBatchReader(const DataSet& data, const ImageBatchReaderOptions& options);
  // Waits for the threads to end. If a thread hangs in a file system for more than 5 s,
  // all threads are detached.
  ~ImageBatchReader() override;

  absl::Status Begin(uint64_t batch, const std::vector<RowId>& rows, const ImageUse& use) override;
  // The memory that `features` had is reused for a later batch.
  absl::Status Take(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                    DamagedImages* damaged) override;
  bool IsRead(uint64_t batch) override;
  void ForgetBefore(uint64_t batch) override;

 private:
  struct Batch;
  struct State;

  // Waits until `batch` is read, and removes it from the state. Errors: DeadlineExceeded
  // if this takes longer than the timeout; Internal if the batch has not been started.
  absl::StatusOr<std::shared_ptr<Batch>> Await(uint64_t batch);

  const DataSet& data_;
  const ImageBatchReaderOptions options_;
  // Shared with the threads, which may outlive the reader.
  const std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

extern template class ImageBatchReader<float>;
extern template class ImageBatchReader<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_IMAGE_BATCH_READER_H_
