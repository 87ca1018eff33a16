#include "common/short_slices.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace syncgrads {
namespace {

// The shortest slice that Linux permits, in nanoseconds. The default is 1 ms or more.
constexpr unsigned kSlice = 100'000;

}  // namespace

void AskForShortSlices() {
  sched_attr attributes = {};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.sched_policy != SCHED_NORMAL) return;
  attributes.sched_runtime = kSlice;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace syncgrads
