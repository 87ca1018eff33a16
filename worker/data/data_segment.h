// A part of a run whose workers shared out the shards in one way.

#ifndef SYNCGRADS_WORKER_DATA_DATA_SEGMENT_H_
#define SYNCGRADS_WORKER_DATA_DATA_SEGMENT_H_

#include <cstdint>

namespace syncgrads {

// So many steps, in which the shards were shared out among so many workers, with
// batches of so many rows each. Which rows come after a list of these is a function
// of it, the seed and the shards.
struct DataSegment {
  uint32_t workers = 0;
  uint32_t batch_size = 0;
  uint64_t steps = 0;
  friend bool operator==(const DataSegment&, const DataSegment&) = default;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_DATA_SEGMENT_H_
