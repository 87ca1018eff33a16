#include "common/process_setup.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <limits>

#include "absl/synchronization/mutex.h"

namespace syncgrads {

namespace {

// Lets the descriptors 0, 1 and 2 be /dev/null if they are closed. Otherwise the next file or
// connection would get their numbers, and what is printed would go there.
void OpenStandardStreams() {
  for (int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(number, F_GETFD) >= 0) continue;
    // The lowest number that is free.
    if (open("/dev/null", O_RDWR) < 0) return;
  }
}

}  // namespace

void SetUpProcess() {
  OpenStandardStreams();
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
