// Reads the rows that a process has itself.

#ifndef SYNCGRADS_WORKER_BATCHES_OWN_ROWS_H_
#define SYNCGRADS_WORKER_BATCHES_OWN_ROWS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "worker/batches/data_set.h"
#include "worker/data/row_source.h"

namespace syncgrads {

struct OwnRowsOptions {
  // The dtype of features that are not pixels of 8 bits: F32 or F64.
  v1::DType dtype = v1::F32;
  // The threads that read images ahead; fewer if the system does not start as many. If there are
  // none, Take reads. Rows of tables are always read by Take.
  int threads = 0;
  // How long Take waits for a batch.
  absl::Duration timeout = absl::Seconds(60);
};

// The rows of a data set that this process has loaded. Several threads read images while the caller
// computes. Must be used from one thread only.
class OwnRows : public RowSource {
 public:
  // `data` outlives the object, and is not served.
  OwnRows(const DataSet& data, const OwnRowsOptions& options);
  // Waits for the threads to end. If a thread hangs in a file system for more than 5 s,
  // all threads are detached.
  ~OwnRows() override;

  // The number of bytes of a row in RowBatch::features.
  size_t row_bytes() const;

  absl::StatusOr<uint64_t> Ask(absl::Span<const RowId> rows, const ImageUse& use) override;
  absl::StatusOr<RowBatch> Take(uint64_t asked) override;
  bool IsRead(uint64_t asked) override;
  void Forget(uint64_t asked) override;
  void Reuse(std::string features) override;

 private:
  struct Batch;
  struct State;

  // Waits until `batch` is read. Errors: DeadlineExceeded if this takes longer than the timeout.
  absl::Status Await(const Batch& batch);
  // Reads a batch on this thread.
  void ReadHere(const std::shared_ptr<Batch>& batch);

  const DataSet& data_;
  const OwnRowsOptions options_;
  uint64_t asked_ = 0;
  std::map<uint64_t, std::shared_ptr<Batch>> batches_;
  // Shared with the threads, which may outlive this object.
  const std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BATCHES_OWN_ROWS_H_
