#include "tests/fault/run.h"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "tests/fault/driver.h"
#include "tests/fault/history.h"
#include "tests/fault/network.h"
#include "tests/fault/replay.h"
#include "worker/checkpoint/checkpoint_directory.h"

namespace syncgrads::fault {
namespace {

std::string ReadAll(const std::string& path) {
  std::ostringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

std::string Described(const testing::Exit& exit) {
  std::ostringstream text;
  text << exit;
  return text.str();
}

// Returns true for the exit codes of ps-worker that mean that it cannot take part in this job any
// more; see worker/run/exit_code.h.
bool IsTooLate(const testing::Exit& exit) {
  return exit == testing::ExitCode(202) || exit == testing::ExitCode(203) ||
         exit == testing::ExitCode(204);
}

// Returns true if SIGTERM came while the program was being loaded, before it had installed its
// handler.
bool EndedBeforeMain(const Life& life) {
  return *life.exit == testing::KilledBy(SIGTERM) && life.process->output().empty();
}

// Checks the outcome of a run.
class Verdict {
 public:
  Verdict(const Schedule& schedule, const RunOptions& options, Cluster& cluster,
          const Driver& driver)
      : schedule_(schedule),
        cluster_(cluster),
        // In a schedule with a trouble no process is killed, so all workers keep their state.
        state_may_be_lost_((driver.state_may_be_lost() || driver.leases_may_have_ended()) &&
                           !(options.jobs_are_kept && schedule.trouble != Trouble::kBase)),
        leases_may_have_ended_(driver.leases_may_have_ended()) {}

  absl::Status Find(const std::string& directory, RunReport& report) {
    SYNCGRADS_RETURN_IF_ERROR(ReadHistory());
    SYNCGRADS_RETURN_IF_ERROR(CheckExits(report));
    SYNCGRADS_RETURN_IF_ERROR(CheckVisits());
    const std::vector<const Step*> steps = StepsOf(history_);
    report.partial_steps = static_cast<int>(
        absl::c_count_if(steps, [](const Step* step) { return !step->parts.empty(); }));
    const uint64_t last = report.state_lost ? steps.size() : StepsOf(schedule_.job);
    SYNCGRADS_RETURN_IF_ERROR(
        CheckHistory(history_, last, has_quorum() ? Waits::kForQuorum : Waits::kForAll));
    if (schedule_.servers_only && !has_quorum() && steps.back()->epoch != steps.front()->epoch) {
      return absl::DataLossError(
          absl::StrCat("only servers died, and the last step is of epoch ", steps.back()->epoch));
    }
    if (report.state_lost) return absl::OkStatus();
    return CompareModels(directory, report);
  }

 private:
  bool has_quorum() const { return schedule_.job.trait == Trait::kQuorum; }

  absl::Status ReadHistory() {
    for (int worker = 0; worker < kWorkers; ++worker) {
      for (const auto& life : cluster_.lives(WorkerId(worker))) {
        SYNCGRADS_RETURN_IF_ERROR(AddTo(history_, ReadAll(life->events)));
      }
    }
    return absl::OkStatus();
  }

  // Returns true if a fault may have ended the membership of this worker.
  bool IsDisturbed(int worker) const {
    if (leases_may_have_ended_) return true;
    for (const Fault& fault : schedule_.faults) {
      if (absl::c_linear_search(MayBeDropped(schedule_, fault), worker)) return true;
    }
    return false;
  }

  absl::Status CheckVisits() const {
    // The visitor's exit code for RESOURCE_EXHAUSTED; see visitor_main.cc.
    constexpr int kRefused = 10;
    for (const Visit& visit : cluster_.visits()) {
      const testing::Exit& exit = *visit.life->exit;
      if (exit == testing::ExitCode(0)) continue;
      if (visit.may_be_refused && exit == testing::ExitCode(kRefused)) continue;
      return absl::DataLossError(absl::StrCat("a visit of another job ended with ", Described(exit),
                                              ":\n", visit.life->process->output()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckExits(RunReport& report) {
    std::vector<std::string> others;
    bool all_excused = true;
    for (int worker = 0; worker < kWorkers; ++worker) {
      for (const auto& life : cluster_.lives(WorkerId(worker))) {
        const testing::Exit& exit = *life->exit;
        if (exit == testing::ExitCode(0)) {
          finished_.push_back(life.get());
          continue;
        }
        // The driver has killed the worker.
        if (exit == testing::KilledBy(SIGKILL)) continue;
        const bool stopped =
            life->told_to_stop && (exit == testing::ExitCode(143) || EndedBeforeMain(*life));
        if (stopped && !life->found_no_servers) continue;
        // With a quorum, a worker that is too far behind joins again, unless the job is over by
        // then: it is told so, or finds no servers until the driver stops it.
        const bool may_be_late = IsDisturbed(worker) || has_quorum();
        const bool excused = may_be_late && (stopped || IsTooLate(exit));
        all_excused = all_excused && excused;
        others.push_back(absl::StrCat("worker ", worker, " ended with ", Described(exit), ":\n",
                                      life->process->output()));
      }
    }
    if (finished_.empty() && state_may_be_lost_) {
      report.state_lost = true;
      return absl::OkStatus();
    }
    if (finished_.empty()) {
      return absl::DataLossError(
          absl::StrCat("no worker has finished; ", others.empty() ? "" : others.front()));
    }
    // Workers that came back when the job was over have ended with such an exit code.
    if (others.empty() || all_excused) return absl::OkStatus();
    return absl::DataLossError(others.front());
  }

  // Returns the model that a life wrote. The file's name contains the final rank.
  static absl::StatusOr<std::string> ModelOf(const Life& life) {
    const std::filesystem::path prefix = absl::StrCat(life.output, ".rank");
    for (const auto& entry : std::filesystem::directory_iterator(prefix.parent_path())) {
      if (absl::StartsWith(entry.path().string(), prefix.string())) {
        return ReadAll(entry.path().string());
      }
    }
    return absl::NotFoundError(
        absl::StrCat("a worker has ended with 0 and not written ", prefix.string(), "*"));
  }

  absl::Status CompareModels(const std::string& directory, RunReport& report) {
    for (const Life* life : finished_) {
      SYNCGRADS_ASSIGN_OR_RETURN(std::string model, ModelOf(*life));
      if (life == finished_.front()) report.model = model;
      if (model == report.model) continue;
      return absl::DataLossError(
          absl::StrCat("replicas differ: ", finished_.front()->output, " and ", life->output));
    }
    // The compression error that workers have not sent yet is not in the logs, so there is no
    // replay. Such jobs are compared with the undisturbed run.
    if (IsCompressed(schedule_.job.trait)) return absl::OkStatus();
    const CheckpointDirectory checkpoints({absl::StrCat(directory, "/checkpoints")});
    std::vector<uint64_t> kept;
    if (schedule_.job.trait == Trait::kCheckpoints) {
      SYNCGRADS_ASSIGN_OR_RETURN(kept, checkpoints.Steps());
    }
    const std::string replayed = absl::StrCat(directory, "/replay.safetensors");
    SYNCGRADS_RETURN_IF_ERROR(
        Replay(cluster_.job(), kWorkers, history_, replayed, {kept.begin(), kept.end()}));
    if (ReadAll(replayed) != report.model) {
      return absl::DataLossError(
          absl::StrCat("the model differs from that of the replay, ", replayed));
    }
    for (const uint64_t step : kept) {
      SYNCGRADS_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                                 ReadCheckpoint(checkpoints.PathOf(step)));
      if (checkpoint.files.at("model.safetensors") == ReadAll(KeptPath(replayed, step))) continue;
      return absl::DataLossError(
          absl::StrCat(checkpoint.path, " has another model than the replay after step ", step));
    }
    report.checkpoints = static_cast<int>(kept.size());
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  Cluster& cluster_;
  const bool state_may_be_lost_;
  const bool leases_may_have_ended_;
  History history_;
  std::vector<const Life*> finished_;
};

}  // namespace

absl::StatusOr<RunReport> RunSchedule(const Schedule& schedule, const RunOptions& options) {
  const absl::Time deadline = absl::Now() + options.deadline;
  std::filesystem::remove_all(options.directory);
  std::filesystem::create_directories(options.directory);
  SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<FaultyNetwork> network,
                             FaultyNetwork::Create(schedule));
  Cluster cluster(schedule, options.programs, options.directory, *network);
  absl::Status status = cluster.Start(deadline);
  RunReport report;
  if (status.ok()) {
    Driver driver(schedule, cluster, *network);
    status = driver.RunToEnd(deadline);
    if (status.ok()) {
      status = Verdict(schedule, options, cluster, driver).Find(options.directory, report);
    }
    report.outages = driver.outages();
  }
  cluster.WriteOutputs();
  SYNCGRADS_RETURN_IF_ERROR(status);
  return report;
}

std::string Comparison::DirectoryOf(const Schedule& schedule) const {
  return absl::StrCat(options_.directory, "/seed-", schedule.seed);
}

absl::StatusOr<std::string> Comparison::UndisturbedModel(const JobKind& job) {
  RunOptions options = options_;
  Reference* reference;
  {
    std::lock_guard lock(mutex_);
    reference = &references_[job];
  }
  absl::StrAppend(&options.directory, "/undisturbed, ", ToString(job));
  std::lock_guard lock(reference->mutex);
  if (!reference->model.has_value()) {
    SYNCGRADS_ASSIGN_OR_RETURN(RunReport report, RunSchedule(Undisturbed(job), options));
    reference->model = std::move(report.model);
  }
  return *reference->model;
}

absl::StatusOr<RunReport> Comparison::Run(const Schedule& schedule) {
  RunOptions options = options_;
  options.directory = DirectoryOf(schedule);
  SYNCGRADS_ASSIGN_OR_RETURN(RunReport report, RunSchedule(schedule, options));
  if (!schedule.servers_only || schedule.job.trait == Trait::kQuorum) return report;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string undisturbed, UndisturbedModel(schedule.job));
  if (report.model != undisturbed) {
    return absl::DataLossError("the model differs from that of the undisturbed run");
  }
  return report;
}

}  // namespace syncgrads::fault
