// Asks for rows ahead that another process has read.

#ifndef SYNCGRADS_WORKER_TRAIN_SERVED_BATCH_READER_H_
#define SYNCGRADS_WORKER_TRAIN_SERVED_BATCH_READER_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/batch_reader.h"
#include "worker/train/data_set.h"

namespace syncgrads {

template <typename T>
class ServedBatchReader : public BatchReader<T> {
 public:
  // `data`'s rows are served; it outlives the reader.
  explicit ServedBatchReader(const DataSet& data) : data_(data) {}
  ~ServedBatchReader() override;

  absl::Status Begin(uint64_t batch, const std::vector<RowId>& rows, const ImageUse& use) override;
  absl::Status Take(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                    DamagedImages* damaged) override;
  bool IsRead(uint64_t) override { return false; }
  void ForgetBefore(uint64_t batch) override;

 private:
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
