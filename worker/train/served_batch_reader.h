// Requests batches ahead from a process that serves the job's data.

#ifndef SYNCGRADS_WORKER_TRAIN_SERVED_BATCH_READER_H_
#define SYNCGRADS_WORKER_TRAIN_SERVED_BATCH_READER_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/batch_reader.h"
#include "worker/train/data_set.h"

namespace syncgrads {

// Reads batches that another process has read. The trainer's thread calls it. Not
// thread-safe.
template <typename T>
class ServedBatchReader : public BatchReader<T> {
 public:
  // The rows of `data` are served. `data` outlives the reader.
  explicit ServedBatchReader(const DataSet& data) : data_(data) {}
  ~ServedBatchReader() override;

  absl::Status Begin(uint64_t batch, const std::vector<RowId>& rows, const ImageUse& use) override;
  absl::Status Take(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                    DamagedImages* damaged) override;
  bool IsRead(uint64_t) override { return false; }
  void ForgetBefore(uint64_t batch) override;

 private:
  // A batch that has been requested; ServedRows::Ask returned `asked`.
  struct Begun {
    uint64_t asked = 0;
    std::vector<RowId> rows;
  };

  const DataSet& data_;
  std::map<uint64_t, Begun> begun_;
};

extern template class ServedBatchReader<float>;
extern template class ServedBatchReader<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_SERVED_BATCH_READER_H_
