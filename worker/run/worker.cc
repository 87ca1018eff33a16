#include "worker/run/worker.h"

#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/placement/placement.h"
#include "common/status_macros.h"
#include "worker/job/job_file.h"
#include "worker/train/client_team.h"
#include "worker/train/progress.h"
#include "worker/train/run.h"
#include "worker/train/team.h"

namespace syncgrads {
namespace {

// After a signal, for the step under way to end.
constexpr absl::Duration kStopGrace = absl::Seconds(5);
// For leaving a job when something has gone wrong.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(5);

absl::Status CheckOptions(const WorkerOptions& options) {
  if (options.job.empty()) return absl::InvalidArgumentError("--job is missing: the job file");
  if (absl::StartsWith(options.device, "cuda")) {
    return absl::UnimplementedError(absl::StrCat("--device is ", options.device,
                                                 ", but this build has no CUDA devices; "
                                                 "--device=cpu works"));
  }
  if (options.device != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device is \"", options.device, "\", there is cpu"));
  }
  if (!options.evaluate.empty() && !options.predict.empty()) {
    return absl::InvalidArgumentError("--evaluate and --predict are both given: give one");
  }
  if (options.predict.empty() != options.predictions.empty()) {
    return absl::InvalidArgumentError("--predict and --predictions go together");
  }
  if (options.batch_size.has_value() && *options.batch_size == 0) {
    return absl::InvalidArgumentError("--batch_size is 0, must be at least 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<Job> LoadJob(const WorkerOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(Job job, LoadJobFile(options.job));
  if (options.seed.has_value()) job.file.set_seed(*options.seed);
  if (options.batch_size.has_value()) job.file.set_batch_size(*options.batch_size);
  return job;
}

// Flags, or else what the launcher says.
absl::StatusOr<Placement> FindPlacement(const WorkerOptions& options,
                                        const WorkerSurroundings& surroundings) {
  Placement placement;
  if (!options.rank.has_value() || !options.world_size.has_value()) {
    SYNCGRADS_ASSIGN_OR_RETURN(placement, DetectPlacement(surroundings.getenv));
  }
  if (options.rank.has_value()) placement.rank = options.rank;
  if (options.world_size.has_value()) placement.world_size = options.world_size;
  if (placement.world_size.has_value() && *placement.world_size == 0) {
    return absl::InvalidArgumentError("--world_size is 0, must be at least 1");
  }
  return placement;
}

absl::Status Train(const Job& job, const WorkerOptions& options, Team& team,
                   const WorkerSurroundings& surroundings) {
  NoProgress no_progress;
  ConsoleProgress console(surroundings.out, surroundings.out_is_terminal, surroundings.clock);
  TrainerOptions trainer;
  trainer.step_timeout = options.timeout;
  trainer.should_stop = [&] { return surroundings.stop.requested(); };
  trainer.progress = &no_progress;
  if (team.is_master()) trainer.progress = &console;
  std::string output;
  if (options.output_per_rank) {
    output = OutputOfRank(options.output, team.rank());
  } else if (team.is_master()) {
    output = options.output;
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const TrainingResult result, RunTraining(job, team, trainer, output));
  if (team.is_master()) {
    surroundings.out << "trained on: " << ToString(result.trained_on) << "\n";
    if (result.held_out.has_value()) {
      surroundings.out << "held out:   " << ToString(*result.held_out) << "\n";
    }
    surroundings.out << ToString(result.replicas) << "\n";
    if (!output.empty()) surroundings.out << "model written to " << output << "\n";
    surroundings.out << std::flush;
  }
  if (!result.replicas.identical()) return absl::DataLossError(ToString(result.replicas));
  return absl::OkStatus();
}

absl::Status RunJob(const Job& job, const WorkerOptions& options, Team& team,
                    const WorkerSurroundings& surroundings) {
  if (!options.evaluate.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(const EvaluationResult result,
                               RunEvaluation(job, team, options.evaluate));
    if (!team.is_master()) return absl::OkStatus();
    surroundings.out << "all rows: " << ToString(result.all) << "\n";
    if (result.held_out.has_value()) {
      surroundings.out << "held out: " << ToString(*result.held_out) << "\n";
    }
    surroundings.out << std::flush;
    return absl::OkStatus();
  }
  if (!options.predict.empty()) {
    SYNCGRADS_RETURN_IF_ERROR(RunPrediction(job, team, options.predict, options.predictions));
    if (team.is_master()) {
      surroundings.out << "predictions written to " << options.predictions << std::endl;
    }
    return absl::OkStatus();
  }
  return Train(job, options, team, surroundings);
}

// With servers: joins, runs, and leaves in every case.
WorkerOutcome RunAsMember(const Job& job, const WorkerOptions& options, const Placement& placement,
                          const WorkerSurroundings& surroundings) {
  ClientOptions client_options;
  client_options.coordinator = options.server;
  client_options.job = job.file.name();
  client_options.token = options.token;
  client_options.name = options.name;
  client_options.rank = placement.rank;
  client_options.world_size =
      placement.world_size.value_or(job.file.workers() > 0 ? job.file.workers() : 1);
  client_options.connections_per_server = options.connections_per_server;
  Client client(client_options);
  surroundings.stop.SetLastResort([&client] { client.Abandon(); }, kStopGrace);
  const absl::Cleanup take_back = [&] {
    surroundings.stop.SetLastResort(nullptr, absl::ZeroDuration());
  };
  absl::Status status = client.Join(options.timeout);
  const bool joined = status.ok();
  if (joined) {
    ClientTeam team(client, options.timeout);
    status = RunJob(job, options, team, surroundings);
    const absl::Status left = client.Leave(status.ok() ? options.timeout : kLeaveTimeout);
    if (status.ok()) status = left;
  }
  if (!status.ok() && surroundings.stop.requested()) {
    return {absl::CancelledError(status.message()), absl::OkStatus()};
  }
  // A worker that was not admitted has no membership that could have ended.
  return {status, joined ? client.status() : absl::OkStatus()};
}

}  // namespace

WorkerOutcome RunWorker(const WorkerOptions& options, const WorkerSurroundings& surroundings) {
  const absl::Status valid = CheckOptions(options);
  if (!valid.ok()) return {valid, absl::OkStatus()};
  const absl::StatusOr<Job> job = LoadJob(options);
  if (!job.ok()) return {job.status(), absl::OkStatus()};
  const absl::StatusOr<Placement> placement = FindPlacement(options, surroundings);
  if (!placement.ok()) return {placement.status(), absl::OkStatus()};
  if (!options.server.empty()) return RunAsMember(*job, options, *placement, surroundings);

  const bool needs_server = options.evaluate.empty() && options.predict.empty();
  const uint32_t world_size = placement->world_size.value_or(1);
  if (needs_server || world_size > 1) {
    return {
        absl::InvalidArgumentError(absl::StrCat(
            "--server is missing: ",
            needs_server ? "training needs one" : absl::StrCat(world_size, " workers need one"))),
        absl::OkStatus()};
  }
  SoleWorker team;
  return {RunJob(*job, options, team, surroundings), absl::OkStatus()};
}

std::string OutputOfRank(const std::string& output, uint32_t rank) {
  if (output.empty()) return output;
  const size_t dot = output.rfind('.');
  const size_t slash = output.rfind('/');
  const bool has_extension =
      dot != std::string::npos && (slash == std::string::npos || dot > slash);
  const size_t end = has_extension ? dot : output.size();
  return absl::StrCat(output.substr(0, end), ".rank", rank, output.substr(end));
}

}  // namespace syncgrads
