// The memory of this worker that servers on the same host can map.

#ifndef SYNCGRADS_CLIENT_MEMORY_SHARED_BUFFERS_H_
#define SYNCGRADS_CLIENT_MEMORY_SHARED_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "common/shm/region.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Owned by Session. Regions live as long as this object. Thread-safe.
class SharedBuffers {
 public:
  struct Region {
    uint32_t number;
    std::unique_ptr<SharedRegion> memory;
  };

  // Sets the listener, which is called without locks after each allocation. Null: none is called.
  void SetListener(std::function<void()> listener);

  // Allocates a region and calls the listener. ResourceExhausted if there is not enough memory.
  absl::StatusOr<const Region*> Allocate(size_t bytes);

  // Returns the region and offset at which `bytes` lie; nullopt if they are not all in one region.
  std::optional<SharedPiece> Find(absl::Span<const std::byte> bytes) const;

  // Returns the regions with numbers from `first` on, in ascending order.
  std::vector<const Region*> From(uint32_t first) const;

 private:
  mutable Mutex mutex_;
  std::function<void()> listener_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  // Keyed by the address of their first byte.
  std::map<const std::byte*, Region> regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_MEMORY_SHARED_BUFFERS_H_
