#include "common/metrics/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/signals/protocol.h"

namespace syncgrads {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns field `number` of /proc/self/stat, which counts from 1 as in proc(5).
std::optional<double> StatField(size_t number) {
  // The second field is the program's name in parentheses, which may contain spaces.
  constexpr size_t kFirstAfterName = 3;
  const std::string stat = Read("/proc/self/stat");
  const size_t end = stat.rfind(") ");
  if (end == stat.npos) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(end + 2), ' ');
  double value = 0;
  if (number - kFirstAfterName >= fields.size()) return std::nullopt;
  if (!absl::SimpleAtod(fields[number - kFirstAfterName], &value)) return std::nullopt;
  return value;
}

// Returns the time at which this host started, in seconds since 1970.
std::optional<double> BootTime() {
  for (const absl::string_view line : absl::StrSplit(Read("/proc/stat"), '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    double time = 0;
    if (words.size() == 2 && words[0] == "btime" && absl::SimpleAtod(words[1], &time)) return time;
  }
  return std::nullopt;
}

}  // namespace

void AddProcessMetrics(MetricLabels program, MetricFamilies& families) {
  program.emplace_back("protocol_version", absl::StrCat(kProtocolVersion));
  families.Gauge("syncgrads_build_info", "Always 1. The labels describe the program.",
                 std::move(program), 1);
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    families.Counter("process_cpu_seconds_total", "CPU time of this process, user and system.", {},
                     Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  }
  if (const std::optional<double> pages = StatField(24)) {
    families.Gauge("process_resident_memory_bytes",
                   "Memory of this process that is in use, including shared memory.", {},
                   *pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
  std::error_code error;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  if (!error) {
    families.Gauge("process_open_fds", "Open file descriptors of this process.", {},
                   static_cast<double>(std::distance(begin(descriptors), end(descriptors))));
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    families.Gauge("process_max_fds", "Limit of open file descriptors of this process.", {},
                   static_cast<double>(limit.rlim_cur));
  }
  const std::optional<double> boot = BootTime(), started = StatField(22);
  if (boot.has_value() && started.has_value()) {
    families.Gauge("process_start_time_seconds",
                   "Start of this process, in seconds since 1970-01-01 UTC.", {},
                   *boot + *started / static_cast<double>(sysconf(_SC_CLK_TCK)));
  }
}

}  // namespace syncgrads
