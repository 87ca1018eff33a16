// Reads batches of rows: for training, evaluation and prediction, of any source.

#ifndef SYNCGRADS_WORKER_BATCHES_BATCH_READER_H_
#define SYNCGRADS_WORKER_BATCHES_BATCH_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "worker/batches/data_set.h"
#include "worker/data/row_source.h"
#include "worker/nn/matrix.h"
#include "worker/nn/models/model_input.h"
#include "worker/nn/pixels.h"
#include "worker/train/compute.h"

namespace syncgrads {

// Prepares batches in the background while the caller computes. The caller of Begin bounds the
// number of batches, and so the memory. T is float or double.
//
// Must be used from one thread only.
template <typename T>
class BatchReader {
 public:
  // Reads rows of `data`, which outlives the reader, from `source`.
  BatchReader(const DataSet& data, std::shared_ptr<RowSource> source);
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  // Starts to read `rows` as the batch with number `batch`. Does nothing if that batch
  // has been started already.
  //
  // Errors: those of Take.
  absl::Status Begin(uint64_t batch, absl::Span<const RowId> rows, const ImageUse& use);

  // Waits for a batch that Begin has started. Sets `features` to one row for each of its rows, as
  // the model's input, and `targets` to their targets if the data has any. An image that cannot be
  // read is left out together with its targets and added to `damaged`. If `damaged` is null, the
  // first such image is an error. Each batch can be taken once.
  //
  // A ModelInput has the pixels of images that were read as pixels, and refers to memory of the
  // reader, until the next batch is taken.
  //
  // Errors:
  //   Internal  the batch has not been started
  //   DataLoss  the batch has not as many numbers as its rows
  //   others    those of RowSource::Take, or of an image that cannot be read
  absl::Status Take(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                    DamagedImages* damaged);
  absl::Status Take(uint64_t batch, ModelInput<T>& input, std::vector<double>& targets,
                    DamagedImages* damaged);

  // Whether Take would return at once; false if this is unknown.
  bool IsRead(uint64_t batch);

  // Discards the batches with lower numbers than `batch`.
  void ForgetBefore(uint64_t batch);

 private:
  // A batch that has been requested; RowSource::Ask returned `asked`.
  struct Begun {
    uint64_t asked = 0;
    std::vector<RowId> rows;
  };

  // Takes a batch from the source. Sets `rows` to the number of its rows. Errors: those of Take.
  absl::StatusOr<RowBatch> TakeRows(uint64_t batch, int64_t& rows, std::vector<double>& targets,
                                    DamagedImages* damaged);
  // Sets `features` to `rows` rows. Errors: DataLoss.
  absl::Status Convert(const RowBatch& batch, int64_t rows, Matrix<T>& features) const;
  // Returns the pixels of `rows` rows. Errors: DataLoss.
  absl::StatusOr<Pixels<T>> PixelsOf(const RowBatch& batch, int64_t rows) const;
  absl::Status WrongSize(const RowBatch& batch, int64_t rows) const;

  const DataSet& data_;
  const std::shared_ptr<RowSource> source_;
  // For each channel, the normalised number of each byte.
  std::vector<T> of_bytes_;
  // The batch that was taken last, if its input is in the reader's memory.
  RowBatch taken_;
  Matrix<T> numbers_;
  std::map<uint64_t, Begun> begun_;
};

// Creates the reader of `data`, which outlives it: of a data set of its own, or of the rows that
// another process serves. `source` has the settings of the threads. Images are read ahead if this
// takes long, or if the device is an accelerator, which would wait for them.
template <typename T>
std::unique_ptr<BatchReader<T>> MakeReader(const v1::JobFile& job, const v1::DataSpec& source,
                                           const DataSet& data, uint32_t world_size,
                                           const DeviceChoice& device);

// Returns the number of batches that are read ahead.
size_t BatchesAhead(const v1::DataSpec& source);

// Reads `rows` of any data set at once, for callers without a job: sets `features`, `targets` and
// `damaged` as BatchReader::Take does. Errors: those of BatchReader.
template <typename T>
absl::Status ReadRows(const DataSet& data, absl::Span<const RowId> rows, const ImageUse& use,
                      Matrix<T>& features, std::vector<double>& targets, DamagedImages* damaged);

// Reads many rows for a model that is not trained: batch after batch, some ahead. A batch has the
// rows of a micro-batch, for which there is enough memory.
//
// Must be used from one thread only.
template <typename T>
class RowsInBatches {
 public:
  // For arguments see MakeReader.
  RowsInBatches(const v1::JobFile& job, const v1::DataSpec& source, const DataSet& data,
                uint32_t world_size, const DeviceChoice& device);

  // Receives the features and targets of a batch with at least one row.
  using Use =
      absl::FunctionRef<absl::Status(const Matrix<T>& features, absl::Span<const double> targets)>;

  // Calls `use` for all batches, in order. Images that cannot be read are left out and added to
  // `damaged`; if it is null, the first is an error. Errors: those of BatchReader, and of `use`.
  absl::Status ForEach(absl::Span<const RowId> rows, DamagedImages* damaged, Use use);

 private:
  const std::unique_ptr<BatchReader<T>> reader_;
  const size_t ahead_;
  const size_t batch_size_;
  // The number of the next batch.
  uint64_t next_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BATCHES_BATCH_READER_H_
