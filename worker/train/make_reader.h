// Creates the reader that fits a data set.

#ifndef SYNCGRADS_WORKER_TRAIN_MAKE_READER_H_
#define SYNCGRADS_WORKER_TRAIN_MAKE_READER_H_

#include <cstdint>
#include <memory>

#include "proto/job.pb.h"
#include "worker/train/batch_reader.h"
#include "worker/train/compute.h"
#include "worker/train/data_set.h"

namespace syncgrads {

// Creates the reader of `data`, which outlives it: of a data set of its own, or of the rows that
// another process serves. `source` has the settings of the reader's threads. Returns null if rows
// are read quickly, with FillBatch. Beside an accelerator, images are always read ahead, because it
// would wait for them.
template <typename T>
std::unique_ptr<BatchReader<T>> MakeReader(const v1::JobFile& job, const v1::DataSpec& source,
                                           const DataSet& data, uint32_t world_size,
                                           const DeviceChoice& device);

// Returns the number of batches that are read ahead.
size_t BatchesAhead(const v1::DataSpec& source);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_MAKE_READER_H_
