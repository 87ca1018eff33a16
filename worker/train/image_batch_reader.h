// Reads images ahead, on threads of their own.

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
  // For a batch to be read.
  absl::Duration timeout = absl::Seconds(60);
};

// Images are read by several threads while the trainer computes, straight into the
// matrix that it takes.
template <typename T>
class ImageBatchReader : public BatchReader<T> {
 public:
  // `data`'s rows are images; it outlives the reader.
  ImageBatchReader(const DataSet& data, const ImageBatchReaderOptions& options);
  // Threads that hang in a file that does not answer are left behind.
  ~ImageBatchReader() override;

  absl::Status Begin(uint64_t batch, const std::vector<RowId>& rows, const ImageUse& use) override;
  // What `features` had is what a later batch is read into.
  absl::Status Take(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                    DamagedImages* damaged) override;
  bool IsRead(uint64_t batch) override;
  void ForgetBefore(uint64_t batch) override;

 private:
  struct Batch;
  struct State;

  // Waits until `batch` is read, and gives it up; DEADLINE_EXCEEDED if that takes too long.
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
