// A part of a run in which the number of workers, their batch size and the number of epochs did not
// change.

#ifndef SYNCGRADS_WORKER_DATA_DATA_SEGMENT_H_
#define SYNCGRADS_WORKER_DATA_DATA_SEGMENT_H_

#include <cstdint>

namespace syncgrads {

// `steps` steps in which the shards were divided among `workers` workers, each with batches of
// `batch_size` rows. A worker whose rows were used up after `epochs` passes used none in the steps
// that the others made after that; 0: rows did not end. A list of segments, the seed and the shards
// determine which rows follow.
struct DataSegment {
  uint32_t workers = 0;
  uint32_t batch_size = 0;
  uint64_t steps = 0;
  uint32_t epochs = 0;
  friend bool operator==(const DataSegment&, const DataSegment&) = default;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_DATA_SEGMENT_H_
