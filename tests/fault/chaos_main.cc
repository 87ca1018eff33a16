// Runs random schedules of faults over real servers and workers, and says which went
// wrong. Exit code 0 if none did.

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "tests/fault/run.h"
#include "tests/fault/schedule.h"

ABSL_FLAG(int, schedules, 20, "how many schedules are run, one after the other");
ABSL_FLAG(absl::optional<uint64_t>, seed, absl::nullopt,
          "of the first schedule; the others are those of the seeds after it. Default: drawn");
ABSL_FLAG(std::string, server_program, "bazel-bin/server/ps-server", "ps-server");
ABSL_FLAG(std::string, worker_program, "bazel-bin/worker/ps-worker", "ps-worker");
ABSL_FLAG(std::string, directory, "",
          "for files of the runs, of which those that went wrong are kept; by default "
          "/tmp/syncgrads-chaos-PID");
ABSL_FLAG(bool, keep, false, "keep the files of all runs");

namespace syncgrads::fault {
namespace {

// The median and the worst, or nothing if there are none.
void Print(std::vector<absl::Duration> outages) {
  if (outages.empty()) return;
  std::sort(outages.begin(), outages.end());
  std::cout << outages.size()
            << " times killed servers came back; from then to the next closed step: median "
            << outages[outages.size() / 2] << ", worst " << outages.back() << std::endl;
}

int Main() {
  const int schedules = absl::GetFlag(FLAGS_schedules);
  const absl::optional<uint64_t> given = absl::GetFlag(FLAGS_seed);
  const uint64_t seed = given.has_value() ? *given : std::random_device()() % 1'000'000'000;
  RunOptions options;
  options.programs = {absl::GetFlag(FLAGS_server_program), absl::GetFlag(FLAGS_worker_program)};
  options.directory = absl::GetFlag(FLAGS_directory);
  if (options.directory.empty()) {
    options.directory = absl::StrCat("/tmp/syncgrads-chaos-", getpid());
  }
  std::cout << schedules << " schedules from seed " << seed << " on" << std::endl;

  Comparison comparison(options);
  std::vector<absl::Duration> outages;
  int failed = 0, lost = 0, partial = 0;
  for (int i = 0; i < schedules; ++i) {
    const Schedule schedule = DrawSchedule(seed + static_cast<uint64_t>(i));
    std::cout << "seed " << schedule.seed << ": " << ToString(schedule) << std::endl;
    const absl::Time begin = absl::Now();
    const absl::StatusOr<RunReport> report = comparison.Run(schedule);
    const absl::Duration took = absl::Trunc(absl::Now() - begin, absl::Milliseconds(10));
    if (report.ok()) {
      std::cout << "  passed, " << took;
      if (report->state_lost) std::cout << "; nobody had the state any more, and the job ended";
      std::cout << std::endl;
      lost += report->state_lost ? 1 : 0;
      partial += report->partial_steps;
      outages.insert(outages.end(), report->outages.begin(), report->outages.end());
    } else {
      ++failed;
      std::cout << "  FAILED, " << took << ": " << report.status().message()
                << "\n  again: ./dev chaos --schedules=1 --seed=" << schedule.seed
                << "\n  files: " << comparison.DirectoryOf(schedule) << std::endl;
    }
    if (report.ok() && !absl::GetFlag(FLAGS_keep)) {
      std::filesystem::remove_all(comparison.DirectoryOf(schedule));
    }
  }
  if (failed == 0 && !absl::GetFlag(FLAGS_keep)) std::filesystem::remove_all(options.directory);
  if (partial > 0) {
    std::cout << partial << " steps counted a part of what a worker that died contributed"
              << std::endl;
  }
  if (lost > 0) std::cout << lost << " jobs ended since nobody had their state" << std::endl;
  Print(std::move(outages));
  std::cout << schedules << " schedules, " << failed << " failed" << std::endl;
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace syncgrads::fault

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Runs random schedules of faults over real servers and workers.");
  if (absl::ParseCommandLine(argc, argv).size() > 1) {
    std::cerr << "chaos takes flags only; see --help" << std::endl;
    return 2;
  }
  return syncgrads::fault::Main();
}
