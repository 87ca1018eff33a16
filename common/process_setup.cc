#include "common/process_setup.h"

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>

#include <limits>

#include "absl/synchronization/mutex.h"

namespace syncgrads {

void SetUpProcess() {
  // 32 MiB is glibc's maximum for this threshold. Without a fixed threshold, glibc adapts it,
  // starting at 128 KiB.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  signal(SIGXFSZ, SIG_IGN);
}

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace syncgrads
