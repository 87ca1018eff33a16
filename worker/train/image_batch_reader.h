// Reads images ahead, on threads of their own.

#ifndef SYNCGRADS_WORKER_TRAIN_IMAGE_BATCH_READER_H_
#define SYNCGRADS_WORKER_TRAIN_IMAGE_BATCH_READER_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/train/batch_reader.h"
#include "worker/train/data_set.h"

namespace syncgrads {

// Images that take long to read are read by several threads while the trainer
// computes.
class ImageBatchReader : public BatchReader {
 public:
  struct Options {
    int threads = 1;
    // For a batch to be read.
    absl::Duration timeout = absl::Seconds(60);
  };

  // `data`'s rows are images; it outlives the reader.
  ImageBatchReader(const DataSet& data, const Options& options);
  // Threads that hang in a file that does not answer are left behind.
  ~ImageBatchReader() override;

  absl::Status Begin(uint64_t batch, const std::vector<RowId>& rows, const ImageUse& use) override;
  absl::Status Take(uint64_t batch, Matrix<float>& features, std::vector<double>& targets,
                    DamagedImages* damaged) override;
  absl::Status Take(uint64_t batch, Matrix<double>& features, std::vector<double>& targets,
                    DamagedImages* damaged) override;
  void Forget(uint64_t batch) override;

 private:
  struct State;

  template <typename T>
  absl::Status TakeAs(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                      DamagedImages* damaged);

  const DataSet& data_;
  const Options options_;
  // Shared with the threads, which may outlive the reader.
  const std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_IMAGE_BATCH_READER_H_
