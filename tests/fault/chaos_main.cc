// Runs random schedules of faults over real servers and workers, and reports the ones that failed.
// The exit code is 0 if none failed, 1 if some did, and 2 if a flag is wrong.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "tests/fault/cluster.h"
#include "tests/fault/run.h"
#include "tests/fault/schedule.h"

ABSL_FLAG(int, schedules, 20, "how many schedules are run");
ABSL_FLAG(int, jobs, 0, "how many of them at once; 0: as many as there are processors");
ABSL_FLAG(absl::optional<uint64_t>, seed, absl::nullopt,
          "of the first schedule; the others are those of the seeds after it. Default: drawn");
ABSL_FLAG(std::string, server_program, "bazel-bin/server/ps-server", "ps-server");
ABSL_FLAG(std::string, worker_program, "bazel-bin/worker/ps-worker", "ps-worker");
ABSL_FLAG(std::string, directory, "",
          "for files of the runs, of which those that went wrong are kept; by default "
          "/tmp/syncgrads-chaos-PID");
ABSL_FLAG(bool, keep, false, "keep the files of all runs");
ABSL_FLAG(
    std::vector<std::string>, faults, {"all"},
    "what happens, one of these in each schedule: base (kills, short stops, links, messages), "
    "stop_long (each role is stopped for longer than a lease), cut_long (so long are links "
    "cut), full_state (a server's state directory is full; where this process may mount a "
    "tmpfs), descriptors (a server has no free file descriptor), blocked_log (nobody reads a "
    "server's log), big_group (another job registers a group of 512 MiB to 1 GiB), all");
ABSL_FLAG(bool, jobs_are_kept, false,
          "a job whose workers have all been dropped goes on when they are back: one that ends is "
          "a failure");
ABSL_FLAG(std::string, visitor_program, "bazel-bin/tests/fault/visitor",
          "the client that visits with a job of its own");

namespace syncgrads::fault {
namespace {

std::string Listed(const std::vector<Trouble>& troubles) {
  return absl::StrJoin(troubles, ",",
                       [](std::string* out, Trouble trouble) { *out += ToString(trouble); });
}

// Returns the troubles that --faults names, without those that this machine does not allow.
absl::StatusOr<std::vector<Trouble>> TroublesOfFlag() {
  std::vector<Trouble> troubles;
  const bool can_mount = CanMount();
  for (const std::string& name : absl::GetFlag(FLAGS_faults)) {
    if (name == "all") {
      troubles = AllTroubles();
      continue;
    }
    const std::optional<Trouble> trouble = TroubleOf(name);
    if (!trouble.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--faults: there is no \"", name, "\"; there are ", Listed(AllTroubles()), ", all"));
    }
    troubles.push_back(*trouble);
  }
  if (!can_mount && absl::c_linear_search(troubles, Trouble::kFullState)) {
    std::cout << "full_state is left out: this process may not mount a tmpfs" << std::endl;
    troubles.erase(std::remove(troubles.begin(), troubles.end(), Trouble::kFullState),
                   troubles.end());
  }
  if (troubles.empty()) return absl::InvalidArgumentError("--faults: nothing is left");
  return troubles;
}

// Runs several schedules at the same time, and sums up their outcomes. One mutex protects the sums.
class Campaign {
 public:
  Campaign(uint64_t seed, int schedules, std::vector<Trouble> troubles, RunOptions options)
      : seed_(seed),
        schedules_(schedules),
        troubles_(std::move(troubles)),
        comparison_(std::move(options)) {}

  // Returns when all schedules have been run.
  void Run(int jobs) {
    std::vector<std::thread> threads;
    for (int i = 0; i < std::min(jobs, schedules_); ++i) {
      threads.emplace_back([this] {
        for (int next; (next = next_++) < schedules_;) {
          RunOne(DrawSchedule(seed_ + static_cast<uint64_t>(next), troubles_));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  int failed() const { return failed_; }

  void PrintSummary() const {
    if (partial_ > 0) {
      std::cout << partial_ << " steps counted a part of what a worker that died contributed\n";
    }
    if (checkpoints_ > 0) std::cout << checkpoints_ << " checkpoints were as they have to be\n";
    if (lost_ > 0) std::cout << lost_ << " jobs ended since nobody had their state\n";
    if (!outages_.empty()) {
      std::vector<absl::Duration> sorted = outages_;
      std::sort(sorted.begin(), sorted.end());
      std::cout << sorted.size()
                << " times killed servers came back; from then to the next closed step: median "
                << sorted[sorted.size() / 2] << ", worst " << sorted.back() << "\n";
    }
    std::cout << schedules_ << " schedules, " << failed_ << " failed" << std::endl;
  }

 private:
  void RunOne(const Schedule& schedule) {
    const absl::Time begin = absl::Now();
    const absl::StatusOr<RunReport> report = comparison_.Run(schedule);
    const absl::Duration took = absl::Trunc(absl::Now() - begin, absl::Milliseconds(10));
    std::lock_guard lock(mutex_);
    std::cout << "seed " << schedule.seed << ": " << ToString(schedule) << "\n";
    if (report.ok()) {
      std::cout << "  passed, " << took;
      if (report->state_lost) std::cout << "; nobody had the state any more, and the job ended";
      std::cout << std::endl;
      lost_ += report->state_lost ? 1 : 0;
      partial_ += report->partial_steps;
      checkpoints_ += report->checkpoints;
      outages_.insert(outages_.end(), report->outages.begin(), report->outages.end());
    } else {
      ++failed_;
      std::cout << "  FAILED, " << took << ": " << report.status().message()
                << "\n  again: ./dev chaos --schedules=1 --seed=" << schedule.seed
                << " --faults=" << Listed(troubles_)
                << "\n  files: " << comparison_.DirectoryOf(schedule) << std::endl;
    }
    if (report.ok() && !absl::GetFlag(FLAGS_keep)) {
      std::filesystem::remove_all(comparison_.DirectoryOf(schedule));
    }
  }

  const uint64_t seed_;
  const int schedules_;
  const std::vector<Trouble> troubles_;
  Comparison comparison_;
  std::atomic<int> next_{0};

  std::mutex mutex_;
  // Guarded by mutex_ while runs are in progress.
  int failed_ = 0, lost_ = 0, partial_ = 0, checkpoints_ = 0;
  std::vector<absl::Duration> outages_;
};

int Main() {
  const int schedules = absl::GetFlag(FLAGS_schedules);
  const absl::optional<uint64_t> given = absl::GetFlag(FLAGS_seed);
  const uint64_t seed = given.has_value() ? *given : std::random_device()() % 1'000'000'000;
  const absl::StatusOr<std::vector<Trouble>> troubles = TroublesOfFlag();
  if (!troubles.ok()) {
    std::cerr << troubles.status().message() << std::endl;
    return 2;
  }
  RunOptions options;
  options.programs = {absl::GetFlag(FLAGS_server_program), absl::GetFlag(FLAGS_worker_program),
                      absl::GetFlag(FLAGS_visitor_program)};
  options.jobs_are_kept = absl::GetFlag(FLAGS_jobs_are_kept);
  options.directory = absl::GetFlag(FLAGS_directory);
  if (options.directory.empty()) {
    options.directory = absl::StrCat("/tmp/syncgrads-chaos-", getpid());
  }
  int jobs = absl::GetFlag(FLAGS_jobs);
  if (jobs <= 0) jobs = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::cout << schedules << " schedules from seed " << seed << " on, " << jobs << " at once"
            << std::endl;

  Campaign campaign(seed, schedules, *troubles, options);
  campaign.Run(jobs);
  if (campaign.failed() == 0 && !absl::GetFlag(FLAGS_keep)) {
    std::filesystem::remove_all(options.directory);
  }
  campaign.PrintSummary();
  return campaign.failed() == 0 ? 0 : 1;
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
