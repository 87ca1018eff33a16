// The processors that this process may use.

#ifndef SYNCGRADS_WORKER_BASE_PROCESSORS_H_
#define SYNCGRADS_WORKER_BASE_PROCESSORS_H_

#include <string>

namespace syncgrads {

// Returns how many processors the quotas of the process's cgroups allow, rounded up: cpu.max
// (version 2) or cpu.cfs_quota_us and cpu.cfs_period_us (version 1), of the cgroup and of all
// around it. 0: there is no quota. `root` is prepended to /proc and /sys; tests set it.
int ProcessorsOfQuota(const std::string& root = "");

// Returns the number of processors that this process may use, at least 1: those of its affinity
// mask (taskset, cpuset), or fewer if a quota allows fewer.
int AvailableProcessors();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_PROCESSORS_H_
