// Runs simulated schedules.
//
//   simulate --schedules=10000 --seed=1 --jobs=2
//   simulate --seed=17 --trace          one schedule, with a log of all events
//   simulate --schedules=1000 --pauses  processes also pause for longer than a lease
//
// The last line of the output is "N schedules, F failed". The exit code is 1 if F is not 0.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/planted_bug.h"
#include "tests/sim/schedule.h"

ABSL_FLAG(uint64_t, schedules, 1, "how many");
ABSL_FLAG(uint64_t, seed, 1, "of the first; the others' follow it");
ABSL_FLAG(uint32_t, jobs, 1, "processes that share them");
ABSL_FLAG(bool, pauses, false, "processes also pause for longer than a lease");
ABSL_FLAG(bool, trace, false, "write what happens to the standard error");
ABSL_FLAG(uint64_t, most_failures, 10, "stop after so many; 0: never");
ABSL_FLAG(std::string, plant, "",
          "the bug that is planted (--config=planted); \"list\" prints the names");
ABSL_FLAG(std::string, directory, "/dev/shm", "where the servers' state is kept meanwhile");

namespace syncgrads::sim {
namespace {

struct Totals {
  uint64_t schedules = 0, failed = 0, events = 0, results = 0, deaths = 0, dropped = 0, epochs = 0;
  uint64_t left_behind = 0;
};

// Runs the schedules of the seeds `first`, `first` + `step`, … below `end`.
Totals RunAll(uint64_t first, uint64_t end, uint64_t step) {
  const std::string directory =
      absl::StrCat(absl::GetFlag(FLAGS_directory), "/syncgrads-sim-", getuid(), "-", getpid());
  std::filesystem::create_directory(directory);
  Totals totals;
  const uint64_t most = absl::GetFlag(FLAGS_most_failures);
  for (uint64_t seed = first; seed < end; seed += step) {
    if (most > 0 && totals.failed >= most) break;
    const ScheduleOutcome outcome = RunSchedule({.seed = seed,
                                                 .trace = absl::GetFlag(FLAGS_trace),
                                                 .pauses = absl::GetFlag(FLAGS_pauses),
                                                 .directory = directory});
    ++totals.schedules;
    totals.events += outcome.events;
    totals.results += outcome.results;
    totals.deaths += outcome.server_deaths;
    totals.dropped += outcome.dropped;
    totals.epochs += outcome.epochs;
    totals.left_behind += outcome.left_behind;
    if (outcome.failure.empty()) continue;
    ++totals.failed;
    absl::PrintF("seed %d failed %s\n  %s\n  ./dev sim --seed=%d --trace%s\n", seed,
                 outcome.failure, outcome.description, seed,
                 absl::GetFlag(FLAGS_pauses) ? " --pauses" : "");
    std::fflush(stdout);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return totals;
}

// Runs in a child process: one share of the schedules. Writes the totals to `pipe`.
void RunShare(uint64_t first, uint64_t end, uint64_t step, int pipe) {
  const Totals totals = RunAll(first, end, step);
  if (write(pipe, &totals, sizeof(totals)) != sizeof(totals)) _exit(2);
  _exit(0);
}

Totals RunInParallel(uint64_t first, uint64_t end, uint32_t jobs) {
  if (jobs <= 1) return RunAll(first, end, 1);
  std::vector<std::pair<pid_t, int>> children;
  for (uint32_t job = 0; job < jobs; ++job) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t child = fork();
    if (child == 0) RunShare(first + job, end, jobs, ends[1]);
    close(ends[1]);
    children.push_back({child, ends[0]});
  }
  Totals sum;
  for (const auto& [child, pipe] : children) {
    Totals totals;
    const bool read_all = read(pipe, &totals, sizeof(totals)) == sizeof(totals);
    int status = 0;
    waitpid(child, &status, 0);
    if (!read_all || status != 0) {
      absl::PrintF("process %d of the simulation was ended by status %d\n", child, status);
      ++sum.failed;
      continue;
    }
    sum.schedules += totals.schedules;
    sum.failed += totals.failed;
    sum.events += totals.events;
    sum.results += totals.results;
    sum.deaths += totals.deaths;
    sum.dropped += totals.dropped;
    sum.epochs += totals.epochs;
    sum.left_behind += totals.left_behind;
  }
  return sum;
}

int Main() {
  const uint64_t first = absl::GetFlag(FLAGS_seed);
  const uint64_t count = absl::GetFlag(FLAGS_schedules);
  const absl::Time start = absl::Now();
  const Totals totals =
      RunInParallel(first, first + count, std::min<uint64_t>(absl::GetFlag(FLAGS_jobs), count));
  absl::PrintF(
      "seeds %d to %d, %.1f s: %d events, %d results, %d deaths of servers, %d members dropped, "
      "%d epochs, %d steps without some\n",
      first, first + count - 1, absl::ToDoubleSeconds(absl::Now() - start), totals.events,
      totals.results, totals.deaths, totals.dropped, totals.epochs, totals.left_behind);
  absl::PrintF("%d schedules, %d failed\n", totals.schedules, totals.failed);
  return totals.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace syncgrads::sim

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("runs simulated schedules of a job; see docs/testing.md");
  absl::ParseCommandLine(argc, argv);
  if (const std::string bug = absl::GetFlag(FLAGS_plant); bug == "list") {
    for (const absl::string_view name : syncgrads::kPlantedBugNames) absl::PrintF("%s\n", name);
    return 0;
  } else if (!bug.empty() && !syncgrads::Plant(bug)) {
    absl::FPrintF(stderr, "simulate: there is no bug \"%s\" to plant%s\n", bug,
                  syncgrads::kHasPlantedBugs ? "" : "; build with --config=planted");
    return 2;
  }
  return syncgrads::sim::Main();
}
