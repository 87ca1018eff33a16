// Shared memory to which the parts of a group's contributions are copied that lie in memory of the
// caller that is not shared. This costs one copy. A stream on the same host costs two, and work in
// the kernel.

#ifndef SYNCGRADS_CLIENT_MEMORY_STAGING_H_
#define SYNCGRADS_CLIENT_MEMORY_STAGING_H_

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "client/memory/shared_buffers.h"
#include "common/group/layout.h"
#include "common/ids.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Owned by ContributionSender. Thread-safe for different chunks.
class Staging {
 public:
  // `layout` must outlive this object.
  explicit Staging(const Layout& layout);

  // Copies the spans of a chunk that do not lie in `buffers` to memory from `buffers`, where they
  // are not overwritten before the chunk's next round. Together the spans are not longer than the
  // chunk. If the memory cannot be allocated, returns the spans unchanged.
  std::vector<absl::Span<const std::byte>> Share(SharedBuffers& buffers, ChunkId chunk,
                                                 std::vector<absl::Span<const std::byte>> spans);

 private:
  // Returns the memory of a chunk; null if none can be allocated.
  std::byte* MemoryOf(ChunkId chunk, SharedBuffers& buffers);

  const Layout& layout_;
  std::vector<size_t> offsets_;  // each chunk's offset in `memory_`
  size_t bytes_ = 0;
  Mutex mutex_;
  std::byte* memory_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_MEMORY_STAGING_H_
