// Reads batches ahead, on threads of their own.

#ifndef SYNCGRADS_WORKER_TRAIN_BATCH_READER_H_
#define SYNCGRADS_WORKER_TRAIN_BATCH_READER_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/train/data_set.h"

namespace syncgrads {

// Images that take long to read are read by several threads while the trainer
// computes, as many batches ahead as it asks for: that bounds the memory.
//
// Begin and Take are called by one thread.
class BatchReader {
 public:
  struct Options {
    int threads = 1;
    // For a batch to be read.
    absl::Duration timeout = absl::Seconds(60);
  };

  // `data`'s rows are images; it outlives the reader.
  BatchReader(const DataSet& data, const Options& options);
  // Threads that hang in a file that does not answer are left behind.
  ~BatchReader();

  // Reads `rows` in the background; a `batch` that has been begun already goes on.
  void Begin(uint64_t batch, const std::vector<RowId>& rows, const ImageUse& use);

  // As FillBatch, for what was begun as `batch`; it can be taken once.
  //
  // Errors:
  //   DeadlineExceeded  an image was not read in time; names the first
  //   others            as FillBatch
  template <typename T>
  absl::Status Take(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                    DamagedImages* damaged);

  // Gives up what was begun as `batch`, if it was.
  void Forget(uint64_t batch);

 private:
  struct State;

  const DataSet& data_;
  const Options options_;
  // Shared with the threads, which may outlive the reader.
  const std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_BATCH_READER_H_
