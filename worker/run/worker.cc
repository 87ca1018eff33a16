#include "worker/run/worker.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/placement/placement.h"
#include "common/status_macros.h"
#include "worker/base/file.h"
#include "worker/base/trace.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/data_service/data_client.h"
#include "worker/job/job_file.h"
#include "worker/run/run_progress.h"
#include "worker/run/serve_data.h"
#include "worker/storage/open_storage.h"
#include "worker/train/client_team.h"
#include "worker/train/compute.h"
#include "worker/train/data_set.h"
#include "worker/train/event_log.h"
#include "worker/train/run.h"
#include "worker/train/team.h"

namespace syncgrads {
namespace {

// For leaving a job when something has gone wrong.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(5);
// Until the coordinator knows that this worker's predecessor is gone.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(500);
// A worker that has been taken for dead more often had better be looked at.
constexpr int kMostReturns = 100;

absl::Status CheckOptions(const WorkerOptions& options) {
  if (options.job.empty()) return absl::InvalidArgumentError("--job is missing: the job file");
  if (!options.evaluate.empty() && !options.predict.empty()) {
    return absl::InvalidArgumentError("--evaluate and --predict are both given: give one");
  }
  const bool wants_predictions = !options.predictions.empty() || options.show > 0;
  if (options.predict.empty() == wants_predictions) {
    return absl::InvalidArgumentError("--predict goes together with --predictions or --show");
  }
  const bool uses_model = !options.evaluate.empty() || !options.predict.empty();
  if (options.serve_data.has_value() && (uses_model || options.in_process.of > 1)) {
    return absl::InvalidArgumentError(
        "--serve_data is given, with --evaluate, --predict or --workers_in_process: it does "
        "nothing else");
  }
  if (options.batch_size.has_value() && *options.batch_size == 0) {
    return absl::InvalidArgumentError("--batch_size is 0, must be at least 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<Job> LoadJob(const WorkerOptions& options, const WorkerSurroundings& surroundings) {
  SYNCGRADS_ASSIGN_OR_RETURN(Job job, LoadJobFile(options.job));
  job.readers = &surroundings.extensions.readers;
  if (options.seed.has_value()) job.file.set_seed(*options.seed);
  if (options.batch_size.has_value()) job.file.set_batch_size(*options.batch_size);
  if (job.file.data().served_from().empty() || options.serve_data.has_value()) {
    SYNCGRADS_ASSIGN_OR_RETURN(job.storage,
                               OpenStorage(job.file, job.directory, surroundings.getenv));
  } else {
    job.data_host = ConnectToDataHosts(job.file, options.token, options.timeout);
  }
  if (options.resume && !job.file.has_checkpoint()) {
    return absl::InvalidArgumentError(absl::StrCat("--resume is given, but ", options.job,
                                                   " has no checkpoint { directory: ... }"));
  }
  return job;
}

// Flags, or else what the launcher says.
absl::StatusOr<Placement> FindPlacement(const WorkerOptions& options,
                                        const WorkerSurroundings& surroundings) {
  Placement placement;
  if (!options.rank.has_value() || !options.world_size.has_value()) {
    SYNCGRADS_ASSIGN_OR_RETURN(placement, DetectPlacement(surroundings.getenv));
  }
  // A launcher counts processes, flags count workers.
  const auto [number, of] = options.in_process;
  const auto of_worker = [number, of](std::optional<uint32_t> process) {
    return process.has_value() ? std::optional<uint32_t>(*process * of + number) : std::nullopt;
  };
  placement.rank = of_worker(placement.rank);
  placement.local_rank = of_worker(placement.local_rank);
  if (placement.world_size.has_value()) *placement.world_size *= of;
  if (options.rank.has_value()) placement.rank = *options.rank + number;
  if (options.world_size.has_value()) placement.world_size = options.world_size;
  if (placement.world_size.has_value() && *placement.world_size == 0) {
    return absl::InvalidArgumentError("--world_size is 0, must be at least 1");
  }
  return placement;
}

// What a worker of an elastic job has before it joins.
struct Elastic {
  DataSet data;
  // Whose shards are this worker's; absent where rows are dealt.
  std::optional<uint32_t> rank;
  uint32_t owners = 0;
};

// Says what ClientOptions::autotune has found; empty while there is nobody to say it.
using TellTuned = std::function<void(const std::string&)>;

absl::Status Train(const Job& job, const WorkerOptions& options, const DeviceChoice& device,
                   const Elastic* elastic, const std::string& name, Team& team,
                   std::optional<Snapshot>& kept, TellTuned& tell_tuned,
                   const WorkerSurroundings& surroundings) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<RunProgress> shown,
                             RunProgress::Create(options, surroundings, name, team.is_master()));
  if (team.is_master()) {
    tell_tuned = [&shown](const std::string& found) {
      shown->console().Note("autotune: " + found);
    };
  }
  const absl::Cleanup tell_nobody = [&tell_tuned] { tell_tuned = nullptr; };
  TrainerOptions trainer;
  trainer.step_timeout = options.timeout;
  trainer.extensions = &surroundings.extensions;
  trainer.device = device;
  trainer.should_stop = [&] { return surroundings.stop.requested(); };
  trainer.warn = [&](const std::string& line) {
    surroundings.out << "warning: " << line << std::endl;
  };
  trainer.clock = &surroundings.clock;
  trainer.resume = options.resume;
  trainer.kept = &kept;
  trainer.note = [&](const std::string& line) { shown->console().Note(line); };
  trainer.progress = &shown->progress();
  std::unique_ptr<EventLog> event_log;
  if (!options.event_log.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(event_log, EventLog::Open(options.event_log, name));
    trainer.event_log = event_log.get();
  }
  std::unique_ptr<Trace> trace;
  if (!options.trace.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(trace, Trace::Create(WithSuffix(options.trace, name), name));
    trainer.trace = trace.get();
    trainer.trace_steps = options.trace_steps;
  }
  std::string output;
  if (options.output_per_rank) {
    output = OutputOfRank(options.output, team.rank());
  } else if (team.is_master()) {
    output = options.output;
  }
  absl::StatusOr<TrainingResult> trained;
  if (elastic == nullptr) {
    trained = RunTraining(job, team, trainer, output);
  } else {
    trainer.rank = elastic->rank;
    trainer.owners = elastic->owners;
    trained = RunElasticTraining(job, elastic->data, team, trainer, output);
  }
  SYNCGRADS_RETURN_IF_ERROR(trained.status());
  const TrainingResult& result = *trained;
  shown->Evaluated("trained_on", result.trained_on);
  if (result.held_out.has_value()) shown->Evaluated("held_out", *result.held_out);
  for (const std::string& message : result.damaged.messages()) {
    surroundings.out << "skipped: " << message << "\n";
  }
  if (result.damaged.count() > 0) {
    surroundings.out << "images skipped, each time that they were due: " << result.damaged.count()
                     << std::endl;
  }
  if (result.skipped.total() > 0) {
    surroundings.out << "skipped by this worker, in whole or in part: " << ToString(result.skipped)
                     << std::endl;
  }
  if (team.is_master()) {
    if (result.initialisation.has_value()) {
      surroundings.out << "initialisation " << *result.initialisation + 1
                       << " is the best on the rows held out\n";
    }
    surroundings.out << "made " << result.steps << " steps in " << result.rounds << " rounds\n"
                     << "trained on: " << ToString(result.trained_on) << "\n";
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

// Evaluates or predicts, which a worker can do alone.
absl::Status UseModel(const Job& job, const WorkerOptions& options, const DeviceChoice& device,
                      Team& team, const WorkerSurroundings& surroundings) {
  if (!options.evaluate.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        const EvaluationResult result,
        RunEvaluation(job, team, options.evaluate, surroundings.extensions, device));
    if (!team.is_master()) return absl::OkStatus();
    surroundings.out << "all rows: " << ToString(result.all) << "\n";
    if (result.held_out.has_value()) {
      surroundings.out << "held out: " << ToString(*result.held_out) << "\n";
    }
    surroundings.out << std::flush;
    return absl::OkStatus();
  }
  if (options.show > 0) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        const std::string shown,
        RunShow(job, team, options.predict, options.show, surroundings.extensions, device));
    if (team.is_master()) surroundings.out << shown << std::flush;
  }
  if (options.predictions.empty()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(RunPrediction(job, team, options.predict, options.predictions,
                                          surroundings.extensions, device));
  if (team.is_master()) {
    surroundings.out << "predictions written to " << options.predictions << std::endl;
  }
  return absl::OkStatus();
}

bool Trains(const WorkerOptions& options) {
  return options.evaluate.empty() && options.predict.empty();
}

ClientOptions ClientOptionsOf(const Job& job, const WorkerOptions& options,
                              const Placement& placement) {
  ClientOptions client;
  client.coordinator = options.server;
  client.job = job.file.name();
  client.token = options.token;
  client.name = options.name;
  client.rank = placement.rank;
  client.world_size =
      placement.world_size.value_or(job.file.workers() > 0 ? job.file.workers() : 1);
  client.connections_per_server = options.connections_per_server;
  client.congestion_control = options.congestion_control;
  // From the client's threads, while this one writes to its own output.
  const std::string who =
      options.in_process.of == 1 ? "" : absl::StrCat("worker ", options.in_process.number, ": ");
  client.on_path = client.on_codec_replaced = [who](const std::string& notice) {
    std::cerr << absl::StrCat(who, notice, "\n");
  };
  if (job.file.has_elastic() && Trains(options)) {
    const v1::Elastic& elastic = job.file.elastic();
    client.max_workers = std::max(elastic.max_workers(), client.world_size);
    client.min_workers = std::max(elastic.min_workers(), 1u);
    client.step_timeout = absl::Seconds(elastic.step_timeout_s());
    client.only_running = options.only_running;
  }
  return client;
}

// Joins, runs, and leaves in every case.
WorkerOutcome RunOnce(const Job& job, const WorkerOptions& options, const DeviceChoice& device,
                      const ClientOptions& client_options, const Elastic* elastic,
                      std::optional<Snapshot>& kept, const WorkerSurroundings& surroundings) {
  TellTuned tell_tuned;
  ClientOptions tuned = client_options;
  tuned.autotune = options.autotune && Trains(options);
  tuned.tuned_settings = surroundings.tuned_settings;
  tuned.connections = surroundings.connections;
  tuned.on_tuned = [&tell_tuned](const std::string& found) {
    if (tell_tuned) tell_tuned(found);
  };
  Client client(tuned);
  const auto abandon = [&client] { client.Abandon(); };
  std::optional<StopSignal::LastResort> last_resort;
  // Who has not begun has no step to end.
  last_resort.emplace(surroundings.stop, abandon, absl::ZeroDuration());
  absl::Status status = client.Join(options.timeout);
  const bool joined = status.ok();
  if (joined) {
    last_resort.emplace(surroundings.stop, abandon, options.stop_grace);
    ClientTeam team(client, options.timeout);
    status = Trains(options) ? Train(job, options, device, elastic, client.name(), team, kept,
                                     tell_tuned, surroundings)
                             : UseModel(job, options, device, team, surroundings);
    const absl::Status left = client.Leave(status.ok() ? options.timeout : kLeaveTimeout);
    if (status.ok()) status = left;
  }
  if (!status.ok() && surroundings.stop.requested()) {
    return {absl::CancelledError(status.message()), absl::OkStatus()};
  }
  // A worker that was not admitted has no membership that could have ended. A
  // newcomer's can end before it has taken part.
  const bool admitted = joined || (elastic != nullptr && !client.name().empty());
  absl::Status membership = admitted ? client.status() : absl::OkStatus();
  // A server can refuse a step of a worker that was taken for dead before the
  // coordinator's word of it has come; whoever has left by then does not hear it.
  if (joined && elastic != nullptr && membership.ok() && absl::IsFailedPrecondition(status)) {
    membership = status;
  }
  return {status, membership};
}

absl::StatusOr<Elastic> PrepareElastic(const Job& job, const ClientOptions& client) {
  Elastic elastic;
  elastic.owners = client.max_workers;
  if (job.file.data().mode() == v1::DataSpec::SHARDS) {
    elastic.rank = client.rank;
    if (!elastic.rank.has_value()) {
      return absl::InvalidArgumentError(
          "--rank is missing: in an elastic job with data.mode SHARDS it says which are this "
          "worker's");
    }
  }
  SYNCGRADS_ASSIGN_OR_RETURN(elastic.data, LoadWholeDataSet(job, elastic.owners));
  return elastic;
}

// Whether there is something to go on from when servers have lost the job's state:
// workers have theirs, or checkpoints.
bool OutlivesServers(const Job& job) {
  return job.file.place() == v1::WORKERS || job.file.has_checkpoint();
}

// If servers lose the job's state, all workers begin it again, as a new generation. One
// that hears of it late may find that the others have.
WorkerOutcome RunStatic(const Job& job, WorkerOptions options, const DeviceChoice& device,
                        ClientOptions client, const WorkerSurroundings& surroundings) {
  const bool may_begin_again = Trains(options) && OutlivesServers(job);
  std::optional<Snapshot> kept;
  std::optional<WorkerOutcome> refused;  // of the try before, if this one may be in vain
  for (int returns = 0;; ++returns) {
    WorkerOutcome outcome = RunOnce(job, options, device, client, nullptr, kept, surroundings);
    if (outcome.status.ok() || surroundings.stop.requested()) return outcome;
    const bool lost = absl::IsDataLoss(outcome.membership);
    const bool not_admitted = outcome.membership.ok();
    if (refused.has_value() && not_admitted) return *refused;
    if (!may_begin_again || returns == kMostReturns ||
        !(lost || absl::IsFailedPrecondition(outcome.membership))) {
      return outcome;
    }
    surroundings.out << outcome.membership.message() << "; begins again" << std::endl;
    options.resume = job.file.has_checkpoint();
    client.only_running = !lost;
    refused.reset();
    if (!lost) refused = std::move(outcome);
  }
}

// In an elastic job a worker that was taken for dead comes back as a new one, and
// one that is started while its predecessor is not yet taken for dead waits for
// that.
WorkerOutcome RunElastic(const Job& job, WorkerOptions options, const DeviceChoice& device,
                         ClientOptions client, const WorkerSurroundings& surroundings) {
  const absl::StatusOr<Elastic> elastic = PrepareElastic(job, client);
  if (!elastic.ok()) return {elastic.status(), absl::OkStatus()};
  const absl::Time deadline = absl::Now() + options.timeout;
  const bool only_running = client.only_running;
  std::optional<Snapshot> kept;
  int returns = 0;
  while (true) {
    const WorkerOutcome outcome =
        RunOnce(job, options, device, client, &*elastic, kept, surroundings);
    if (outcome.status.ok() || surroundings.stop.requested()) return outcome;
    if (absl::IsDataLoss(outcome.membership) && OutlivesServers(job) && returns++ < kMostReturns) {
      surroundings.out << outcome.membership.message() << "; begins again" << std::endl;
      options.resume = job.file.has_checkpoint();
      client.only_running = only_running;
    } else if (absl::IsFailedPrecondition(outcome.membership) && returns++ < kMostReturns) {
      surroundings.out << outcome.membership.message() << "; joins again" << std::endl;
      client.only_running = true;
    } else if (absl::IsAlreadyExists(outcome.status) && absl::Now() < deadline) {
      absl::SleepFor(kRetryInterval);
    } else {
      return outcome;
    }
  }
}

}  // namespace

WorkerOutcome RunWorker(const WorkerOptions& options, const WorkerSurroundings& surroundings) {
  const absl::Status valid = CheckOptions(options);
  if (!valid.ok()) return {valid, absl::OkStatus()};
  const absl::StatusOr<Job> job = LoadJob(options, surroundings);
  if (!job.ok()) return {job.status(), absl::OkStatus()};
  if (options.serve_data.has_value()) {
    return {
        ServeData(*job, *options.serve_data, options.token, surroundings.stop, surroundings.out),
        absl::OkStatus()};
  }
  const absl::StatusOr<Placement> placement = FindPlacement(options, surroundings);
  if (!placement.ok()) return {placement.status(), absl::OkStatus()};
  // Where only the rank is known, as of ps-launch's workers, it takes its place.
  const uint32_t local_rank =
      placement->local_rank.value_or(placement->rank.value_or(options.in_process.number));
  const absl::StatusOr<DeviceChoice> device =
      ChooseDevice(options.device, options.matrix_products, local_rank, surroundings.accelerators);
  if (!device.ok()) return {device.status(), absl::OkStatus()};
  if (!options.server.empty()) {
    const ClientOptions client = ClientOptionsOf(*job, options, *placement);
    if (client.max_workers > 0) return RunElastic(*job, options, *device, client, surroundings);
    return RunStatic(*job, options, *device, client, surroundings);
  }

  const bool needs_server = Trains(options);
  const uint32_t world_size = placement->world_size.value_or(1);
  if (needs_server || world_size > 1) {
    return {
        absl::InvalidArgumentError(absl::StrCat(
            "--server is missing: ",
            needs_server ? "training needs one" : absl::StrCat(world_size, " workers need one"))),
        absl::OkStatus()};
  }
  SoleWorker team;
  return {UseModel(*job, options, *device, team, surroundings), absl::OkStatus()};
}

std::string OutputOfRank(const std::string& output, uint32_t rank) {
  return WithSuffix(output, absl::StrCat("rank", rank));
}

}  // namespace syncgrads
