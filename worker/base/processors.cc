#include "worker/base/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace syncgrads {
namespace {

// Returns the words of the file's first line; none if it cannot be read.
std::vector<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return absl::StrSplit(line, ' ', absl::SkipEmpty());
}

// Returns quota / period; infinity if one of them is not a positive number ("max", "-1").
double Quotient(absl::string_view quota, absl::string_view period) {
  double quota_us = 0, period_us = 0;
  if (!absl::SimpleAtod(quota, &quota_us) || !absl::SimpleAtod(period, &period_us) ||
      quota_us <= 0 || period_us <= 0) {
    return HUGE_VAL;
  }
  return quota_us / period_us;
}

double QuotaOf(const std::string& directory) {
  const std::vector<std::string> v2 = FirstLine(directory + "/cpu.max");
  if (v2.size() == 2) return Quotient(v2[0], v2[1]);
  const std::vector<std::string> quota = FirstLine(directory + "/cpu.cfs_quota_us");
  const std::vector<std::string> period = FirstLine(directory + "/cpu.cfs_period_us");
  return quota.empty() || period.empty() ? HUGE_VAL : Quotient(quota[0], period[0]);
}

// Returns the least quota of the cgroup `path` and of all around it. In a container, the path can
// be that of the host; then only its own root can be seen.
double LeastQuota(const std::string& mount, std::string path) {
  double least = QuotaOf(mount);
  while (path.size() > 1) {
    least = std::min(least, QuotaOf(mount + path));
    path.resize(path.rfind('/'));
  }
  return least;
}

}  // namespace

int ProcessorsOfQuota(const std::string& root) {
  // "0::/user.slice/a.scope" (version 2), "4:cpu,cpuacct:/docker/1234" (version 1).
  std::ifstream file(root + "/proc/self/cgroup");
  double least = HUGE_VAL;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      least = std::min(least, LeastQuota(root + "/sys/fs/cgroup", parts[2]));
    } else if (std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end()) {
      least = std::min(least, LeastQuota(root + "/sys/fs/cgroup/cpu", parts[2]));
    }
  }
  return std::isinf(least) ? 0 : std::max(static_cast<int>(std::ceil(least)), 1);
}

int AvailableProcessors() {
  int processors = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // Fails on a machine with more processors than the mask has room for.
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) processors = CPU_COUNT(&mask);
  const int quota = ProcessorsOfQuota();
  if (quota > 0) processors = std::min(processors, quota);
  return std::max(processors, 1);
}

}  // namespace syncgrads
