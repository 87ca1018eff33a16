// Shared memory that a group's contributions are copied to when the caller's own
// is not shared: one copy in place of the two, and the kernel's work, that a
// stream costs on the same host.

#ifndef SYNCGRADS_CLIENT_STAGING_H_
#define SYNCGRADS_CLIENT_STAGING_H_

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "client/shared_buffers.h"
#include "common/ids.h"
#include "common/layout.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Thread-safe for different chunks.
class Staging {
 public:
  // `layout` must outlive this object.
  explicit Staging(const Layout& layout);

  // Whether some of the spans is not shared yet.
  static bool IsNeeded(absl::Span<const absl::Span<const std::byte>> spans,
                       const SharedBuffers& buffers);

  // Copies the spans of a chunk to memory from `buffers`, where they stay until
  // the chunk's next round. The spans as they are if there is no memory for it.
  std::vector<absl::Span<const std::byte>> Copy(SharedBuffers& buffers, ChunkId chunk,
                                                std::vector<absl::Span<const std::byte>> spans);

 private:
  const Layout& layout_;
  std::vector<size_t> offsets_;  // of each chunk
  size_t bytes_ = 0;
  Mutex mutex_;
  std::byte* memory_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_STAGING_H_
