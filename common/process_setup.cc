#include "common/process_setup.h"

#include <malloc.h>

#include <limits>

#include "absl/synchronization/mutex.h"

namespace syncgrads {

void SetUpProcess() {
  // glibc takes no higher threshold than this; without one it adapts from 128 KiB.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace syncgrads
