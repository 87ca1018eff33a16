// This worker's memory that servers on the same host can map.

#ifndef SYNCGRADS_CLIENT_SHARED_BUFFERS_H_
#define SYNCGRADS_CLIENT_SHARED_BUFFERS_H_

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

// Thread-safe. Regions live as long as this object.
class SharedBuffers {
 public:
  struct Region {
    uint32_t number;
    std::unique_ptr<SharedRegion> memory;
  };

  // `listener` is called, without locks, after each allocation; null: nobody is.
  void SetListener(std::function<void()> listener);

  // Errors: ResourceExhausted.
  absl::StatusOr<const Region*> Allocate(size_t bytes);

  // Where `bytes` lie; none if they are not all in one region.
  std::optional<SharedPiece> Find(absl::Span<const std::byte> bytes) const;

  // The regions with numbers from `first` on, in order.
  std::vector<const Region*> From(uint32_t first) const;

 private:
  mutable Mutex mutex_;
  std::function<void()> listener_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  // By their first byte.
  std::map<const std::byte*, Region> regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SHARED_BUFFERS_H_
