#include "worker/run/worker.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/placement/placement.h"
#include "common/clock.h"
#include "common/rpc/credentials.h"
#include "common/status_macros.h"
#include "common/tls/tls_options.h"
#include "worker/base/file.h"
#include "worker/base/host_name.h"
#include "worker/base/hung_device.h"
#include "worker/base/out_of_memory.h"
#include "worker/base/trace.h"
#include "worker/batches/data_set.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/data_service/data_client.h"
#include "worker/data_service/data_server.h"
#include "worker/evaluation/validation.h"
#include "worker/job/job_file.h"
#include "worker/report/event_log.h"
#include "worker/run/operations.h"
#include "worker/run/run_progress.h"
#include "worker/run/serve_data.h"
#include "worker/storage/open_storage.h"
#include "worker/team/client_team.h"
#include "worker/team/team.h"
#include "worker/train/compute.h"

namespace syncgrads {
namespace {

// The timeout of leaving the job after a run that failed.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(5);
// The backoff between attempts to rejoin the job.
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kLongestBackoff = absl::Seconds(5);
// A worker whose membership ends more often than this has a fault of its own.
constexpr int kMostReturns = 100;

absl::Status CheckOptions(const WorkerOptions& options) {
  if (options.job.empty()) return absl::InvalidArgumentError("--job is missing: the job file");
  if (!options.evaluate.empty() && !options.predict.empty()) {
    return absl::InvalidArgumentError("--evaluate and --predict are both given: give only one");
  }
  const bool wants_predictions = !options.predictions.empty() || options.show > 0;
  if (options.predict.empty() == wants_predictions) {
    return absl::InvalidArgumentError(
        "--predict needs --predictions or --show, and these need --predict");
  }
  const bool uses_model = !options.evaluate.empty() || !options.predict.empty();
  if (options.serve_data.has_value() && (uses_model || options.in_process.of > 1)) {
    return absl::InvalidArgumentError(
        "--serve_data cannot be combined with --evaluate, --predict or --workers_in_process");
  }
  if (options.show_top == 0) {
    return absl::InvalidArgumentError("--show_top is 0, must be at least 1");
  }
  if (options.batch_size.has_value() && *options.batch_size == 0) {
    return absl::InvalidArgumentError("--batch_size is 0, must be at least 1");
  }
  return absl::OkStatus();
}

absl::Status CheckSecurity(const WorkerOptions& options) {
  if (!options.serve_data.has_value()) return CheckTls(options.tls, TlsSide::kConnects);
  return CheckTls(options.tls, options.server.empty() ? TlsSide::kListens : TlsSide::kBoth);
}

absl::StatusOr<Job> LoadJob(const WorkerOptions& options, const WorkerDependencies& dependencies) {
  SYNCGRADS_ASSIGN_OR_RETURN(Job job, LoadJobFile(options.job));
  job.readers = &dependencies.extensions.readers;
  if (options.seed.has_value()) job.file.set_seed(*options.seed);
  if (options.batch_size.has_value()) job.file.set_batch_size(*options.batch_size);
  const bool only_serves = options.serve_data.has_value() && options.server.empty();
  if (job.file.data().served_from().empty() || options.serve_data.has_value()) {
    SYNCGRADS_ASSIGN_OR_RETURN(job.storage,
                               OpenStorage(job.file, job.directory, dependencies.getenv));
  }
  if (!job.file.data().served_from().empty() && !only_serves) {
    job.data_host =
        ConnectToDataHosts(job.file, options.token, options.timeout, ChannelSecurity(options.tls));
  }
  if (job.file.validation().has_data() && !only_serves) {
    v1::JobFile of_validation = job.file;
    *of_validation.mutable_data() = job.file.validation().data();
    SYNCGRADS_ASSIGN_OR_RETURN(job.validation_storage,
                               OpenStorage(of_validation, job.directory, dependencies.getenv));
  }
  if (options.resume && !job.file.has_checkpoint()) {
    return absl::InvalidArgumentError(absl::StrCat("--resume is given, but ", options.job,
                                                   " has no checkpoint { directory: ... }"));
  }
  return job;
}

// Returns the worker's rank and world size: from the flags, or else from the environment
// that a launcher sets.
absl::StatusOr<Placement> FindPlacement(const WorkerOptions& options,
                                        const WorkerDependencies& dependencies) {
  Placement placement;
  if (!options.rank.has_value() || !options.world_size.has_value()) {
    SYNCGRADS_ASSIGN_OR_RETURN(placement, DetectPlacement(dependencies.getenv));
  }
  // A launcher counts processes; flags count workers.
  const uint32_t number = options.in_process.number, of = options.in_process.of;
  if (placement.workers_per_process.value_or(of) != of) {
    return absl::InvalidArgumentError(
        absl::StrCat("PET_NPROC_PER_NODE is \"", *placement.workers_per_process,
                     "\" but --workers_in_process is ", of,
                     ": both are the number of workers on this node (", placement.source, ")"));
  }
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

// What a worker of an elastic job prepares before it joins.
struct Elastic {
  DataSet data;
  // The rows of validation.data.
  std::optional<DataSet> validation;
  // Data mode SHARDS: the rank whose shards this worker reads; nullopt in mode DYNAMIC.
  std::optional<uint32_t> rank;
  uint32_t owners = 0;
};

// Prints what ClientOptions::autotune has found; empty while there is no console to print
// it to.
using ReportTuned = std::function<void(const std::string&)>;

// Returns the number of workers on this host. A collective.
absl::StatusOr<uint32_t> CountLocalWorkers(Team& team) {
  const std::string host = HostName();
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, team.Gather("hosts", host));
  return static_cast<uint32_t>(std::count(hosts.begin(), hosts.end(), host));
}

void PrintSkipped(const DamagedImages& damaged, std::ostream& out) {
  for (const std::string& message : damaged.messages()) out << "skipped: " << message << "\n";
  if (damaged.count() > 0) {
    out << "skipped images, counted each time they were read: " << damaged.count() << std::endl;
  }
}

absl::Status Train(const Job& job, const WorkerOptions& options, const DeviceChoice& device,
                   const Elastic* elastic, const std::string& name, Team& team,
                   std::optional<Snapshot>& kept, ReportTuned& report_tuned,
                   const WorkerDependencies& dependencies) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<RunProgress> shown,
                             RunProgress::Create(options, dependencies, device, name, team));
  if (options.log_level <= LogLevel::kInfo) {
    dependencies.out << "joined job \"" << job.file.name() << "\" as worker \"" << name
                     << "\", rank " << team.rank() << " of " << team.world_size() << std::endl;
  }
  if (team.is_master()) {
    report_tuned = [&shown](const std::string& found) {
      shown->console().Note("autotune: " + found);
    };
  }
  const absl::Cleanup report_to_nobody = [&report_tuned] { report_tuned = nullptr; };
  TrainerOptions trainer;
  trainer.step_timeout = options.timeout;
  trainer.extensions = &dependencies.extensions;
  trainer.device = device;
  trainer.should_stop = [&] { return dependencies.stop.requested(); };
  trainer.warn = [&](const std::string& line) {
    dependencies.out << "warning: " << line << std::endl;
  };
  trainer.clock = &dependencies.clock;
  trainer.resume = options.resume;
  trainer.kept = &kept;
  trainer.note = [&](const std::string& line) { shown->console().Note(line); };
  trainer.progress = &shown->progress();
  std::unique_ptr<EventLog> event_log;
  if (!options.event_log.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(event_log, EventLog::Open(options.event_log, name, trainer.warn));
    trainer.event_log = event_log.get();
  }
  std::unique_ptr<Trace> trace;
  if (!options.trace.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(trace,
                               Trace::Create(WithSuffix(options.trace, name), name, trainer.warn));
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
    if (elastic->validation.has_value()) trainer.validation = &*elastic->validation;
    trained = RunElasticTraining(job, elastic->data, team, trainer, output);
  }
  SYNCGRADS_RETURN_IF_ERROR(trained.status());
  const TrainingResult& result = *trained;
  if (result.trained_on.rows > 0) shown->Evaluated("trained_on", result.trained_on);
  if (result.held_out.has_value()) shown->Evaluated("held_out", *result.held_out);
  PrintSkipped(result.damaged, dependencies.out);
  if (result.skipped.total() > 0) {
    dependencies.out << "skipped by this worker, in whole or in part: " << ToString(result.skipped)
                     << std::endl;
  }
  if (team.is_master()) {
    if (result.initialisation.has_value()) {
      dependencies.out << "initialisation " << *result.initialisation + 1
                       << " is the best on the held-out rows\n";
    }
    dependencies.out << "made " << result.steps << " steps in " << result.rounds << " rounds\n";
    if (result.trained_on.rows > 0) {
      dependencies.out << "trained on: " << ToString(result.trained_on) << "\n";
    }
    if (result.validation.has_value()) {
      dependencies.out << "validation: " << ToString(*result.validation) << "\n";
    }
    if (result.held_out.has_value()) {
      dependencies.out << "held out:   " << ToString(*result.held_out) << "\n";
    }
    dependencies.out << ToString(result.replicas) << "\n";
    if (!output.empty()) dependencies.out << "model written to " << output << "\n";
    dependencies.out << std::flush;
  }
  if (!result.replicas.identical()) return absl::DataLossError(ToString(result.replicas));
  return absl::OkStatus();
}

// Evaluates or predicts. A single worker can do this without a server.
absl::Status UseModel(const Job& job, const WorkerOptions& options, const DeviceChoice& device,
                      Team& team, const WorkerDependencies& dependencies) {
  if (!options.evaluate.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        const EvaluationResult result,
        RunEvaluation(job, team, options.evaluate, dependencies.extensions, device));
    PrintSkipped(result.damaged, dependencies.out);
    if (!team.is_master()) return absl::OkStatus();
    if (result.validation.has_value()) {
      dependencies.out << "validation: " << ToString(*result.validation) << "\n";
    }
    if (result.all.has_value()) dependencies.out << "all rows: " << ToString(*result.all) << "\n";
    if (result.held_out.has_value()) {
      dependencies.out << "held out: " << ToString(*result.held_out) << "\n";
    }
    dependencies.out << std::flush;
    return absl::OkStatus();
  }
  if (options.show > 0) {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::string shown,
                               RunShow(job, team, options.predict, {options.show, options.show_top},
                                       dependencies.extensions, device));
    if (team.is_master()) dependencies.out << shown << std::flush;
  }
  if (options.predictions.empty()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(RunPrediction(job, team, options.predict, options.predictions,
                                          dependencies.extensions, device));
  if (team.is_master()) {
    dependencies.out << "predictions written to " << options.predictions << std::endl;
  }
  return absl::OkStatus();
}

bool Trains(const WorkerOptions& options) {
  return options.evaluate.empty() && options.predict.empty();
}

ClientOptions ClientOptionsOf(const Job& job, const WorkerOptions& options,
                              const Placement& placement, uint32_t local_rank) {
  ClientOptions client;
  client.coordinator = options.server;
  client.job = job.file.name();
  client.token = options.token;
  client.tls = options.tls;
  client.name = options.name;
  client.rank = placement.rank;
  client.local_rank = local_rank;
  client.world_size =
      placement.world_size.value_or(job.file.workers() > 0 ? job.file.workers() : 1);
  client.server_timeout = options.timeout;
  client.connections_per_server = options.connections_per_server;
  client.congestion_control = options.congestion_control;
  // The client calls these on its own threads, while this worker's thread writes to
  // `out`; so they write to stderr.
  const std::string who =
      options.in_process.of == 1 ? "" : absl::StrCat("worker ", options.in_process.number, ": ");
  const auto print = [who](const std::string& notice) {
    std::cerr << absl::StrCat(who, notice, "\n");
  };
  client.on_codec_replaced = print;
  if (options.log_level <= LogLevel::kInfo) client.on_paths = print;
  if (options.log_level <= LogLevel::kDebug) client.on_path = print;
  if (job.file.has_elastic() && Trains(options)) {
    const v1::Elastic& elastic = job.file.elastic();
    client.max_workers = std::max(elastic.max_workers(), client.world_size);
    client.min_workers = std::max(elastic.min_workers(), 1u);
    client.step_timeout = absl::Seconds(elastic.step_timeout_s());
    client.only_running = options.only_running;
  }
  return client;
}

// Returns the status of `run`, or OutOfMemoryError if it throws because there is not enough memory.
absl::Status CatchOutOfMemory(absl::FunctionRef<absl::Status()> run) {
  try {
    return run();
  } catch (const OutOfMemory& error) {
    return OutOfMemoryError(error.what());
  } catch (const std::bad_alloc&) {
    return OutOfMemoryError("not enough memory");
  }
}

// Joins the job, runs, and leaves the job also after an error.
WorkerOutcome RunOnce(const Job& job, const WorkerOptions& options, const DeviceChoice& device,
                      const ClientOptions& client_options, const Elastic* elastic,
                      std::optional<Snapshot>& kept, const WorkerDependencies& dependencies) {
  ReportTuned report_tuned;
  ClientOptions tuned = client_options;
  tuned.autotune = options.autotune && Trains(options);
  tuned.tuned_settings = dependencies.tuned_settings;
  tuned.connections = dependencies.connections;
  tuned.on_tuned = [&report_tuned](const std::string& found) {
    if (report_tuned) report_tuned(found);
  };
  Client client(tuned);
  const auto abandon = [&client] { client.Abandon(); };
  std::optional<StopSignal::LastResort> last_resort;
  // Before the first step there is none to finish, so the grace period is zero.
  last_resort.emplace(dependencies.stop, abandon, absl::ZeroDuration());
  absl::Status status = client.Join(options.timeout);
  const bool joined = status.ok();
  if (joined) {
    last_resort.emplace(dependencies.stop, abandon, options.stop_grace);
    ClientTeam team(client, options.timeout);
    const auto run = [&]() -> absl::Status {
      DeviceChoice shared = device;
      // The members of an elastic job change.
      if (elastic == nullptr) {
        SYNCGRADS_ASSIGN_OR_RETURN(shared.local_workers, CountLocalWorkers(team));
      }
      return Trains(options) ? Train(job, options, shared, elastic, client.name(), team, kept,
                                     report_tuned, dependencies)
                             : UseModel(job, options, shared, team, dependencies);
    };
    status = CatchOutOfMemory(run);
    const absl::Status left = client.Leave(status.ok() ? options.timeout : kLeaveTimeout);
    if (status.ok()) status = left;
  }
  if (!status.ok() && dependencies.stop.requested()) {
    absl::Status cancelled = absl::CancelledError(status.message());
    if (IsHungDevice(status)) MarkHungDevice(cancelled);
    return {cancelled, absl::OkStatus()};
  }
  // A worker that was not admitted has no membership that could have ended. A newcomer's
  // membership can end before Join has returned.
  const bool admitted = joined || (elastic != nullptr && !client.name().empty());
  absl::Status membership = admitted ? client.status() : absl::OkStatus();
  // If the job expels a worker, a server may refuse its step before the coordinator's
  // message has arrived; after Leave the message does not arrive any more.
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
          "--rank is missing: in an elastic job with data.mode SHARDS it selects this worker's "
          "shards");
    }
  }
  // With data.mode DYNAMIC a worker may have no rank before it joins.
  const uint32_t rank = client.rank.value_or(client.local_rank.value_or(0));
  SYNCGRADS_ASSIGN_OR_RETURN(elastic.data, LoadWholeDataSet(job, elastic.owners, rank));
  SoleWorker nobody_else;
  SYNCGRADS_ASSIGN_OR_RETURN(elastic.validation,
                             LoadValidationData(job, elastic.data, nobody_else));
  return elastic;
}

// Whether the job can continue if the servers lose its state: from the workers' state or
// from a checkpoint.
bool OutlivesServers(const Job& job) {
  return job.file.optimizer_placement() == v1::WORKERS || job.file.has_checkpoint();
}

// The attempts of a worker to rejoin its job: with exponential backoff, until `timeout`
// has passed since it was last a member.
class Comeback {
 public:
  Comeback(absl::Duration timeout, const StopSignal& stop) : timeout_(timeout), stop_(stop) {
    Begin();
  }

  // Called when the membership has just ended. Restarts backoff and deadline. Returns
  // false if it has ended too often.
  bool Begin() {
    backoff_ = kFirstBackoff;
    deadline_ = MonotonicNow() + timeout_;
    return count_++ < kMostReturns;
  }

  // Sleeps until the next attempt. Returns false if the deadline comes first or the
  // process has been asked to stop.
  bool Wait() {
    const absl::Time next = MonotonicNow() + backoff_;
    backoff_ = std::min(2 * backoff_, absl::Duration(kLongestBackoff));
    if (next > deadline_) return false;
    while (MonotonicNow() < next && !stop_.requested()) absl::SleepFor(kStopPoll);
    return !stop_.requested();
  }

 private:
  static constexpr absl::Duration kStopPoll = absl::Milliseconds(20);

  const absl::Duration timeout_;
  const StopSignal& stop_;
  absl::Duration backoff_ = kFirstBackoff;
  absl::Time deadline_;
  int count_ = 0;
};

// Whether the job may admit this worker later: its predecessor's lease may still run, or
// a new generation may be starting.
bool MayBeAdmittedLater(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsResourceExhausted(status) ||
         absl::IsUnavailable(status);
}

// Whether `outcome` is final, also if the membership has ended. A device that hangs would hang
// again for a worker that rejoins in the same process.
bool IsFinal(const WorkerOutcome& outcome, const StopSignal& stop) {
  return outcome.status.ok() || stop.requested() || IsHungDevice(outcome.status);
}

// Runs a worker of a job that is not elastic. If the servers lose the job's state, all
// workers start it again as a new generation. A worker that is informed late may find
// that the others have done so.
WorkerOutcome RunStatic(const Job& job, WorkerOptions options, const DeviceChoice& device,
                        ClientOptions client, const WorkerDependencies& dependencies) {
  const bool may_begin_again = Trains(options) && OutlivesServers(job);
  std::optional<Snapshot> kept;
  // The outcome because of which the worker has to rejoin.
  std::optional<WorkerOutcome> dropped;
  Comeback comeback(options.timeout, dependencies.stop);
  while (true) {
    WorkerOutcome outcome = RunOnce(job, options, device, client, nullptr, kept, dependencies);
    if (IsFinal(outcome, dependencies.stop)) return outcome;
    const bool not_admitted = outcome.membership.ok();
    if (dropped.has_value() && not_admitted) {
      if (MayBeAdmittedLater(outcome.status) && comeback.Wait()) continue;
      return *dropped;
    }
    const bool lost = absl::IsDataLoss(outcome.membership);
    if (!may_begin_again || !(lost || absl::IsFailedPrecondition(outcome.membership)) ||
        !comeback.Begin()) {
      return outcome;
    }
    dependencies.out << outcome.membership.message() << "; starting again" << std::endl;
    options.resume = job.file.has_checkpoint();
    client.only_running = !lost;
    dropped.reset();
    if (!lost) dropped = std::move(outcome);
  }
}

// Runs a worker of an elastic job. If its membership ends, it rejoins as a newcomer. If
// the lease of its predecessor still runs, it waits for the end of it.
WorkerOutcome RunElastic(const Job& job, WorkerOptions options, const DeviceChoice& device,
                         ClientOptions client, const WorkerDependencies& dependencies) {
  Elastic elastic;
  const absl::Status prepared = CatchOutOfMemory([&]() -> absl::Status {
    SYNCGRADS_ASSIGN_OR_RETURN(elastic, PrepareElastic(job, client));
    return absl::OkStatus();
  });
  if (!prepared.ok()) return {prepared, absl::OkStatus()};
  const bool only_running = client.only_running;
  std::optional<Snapshot> kept;
  bool was_member = false;
  Comeback comeback(options.timeout, dependencies.stop);
  while (true) {
    const WorkerOutcome outcome =
        RunOnce(job, options, device, client, &elastic, kept, dependencies);
    if (IsFinal(outcome, dependencies.stop)) return outcome;
    if (absl::IsDataLoss(outcome.membership) && OutlivesServers(job) && comeback.Begin()) {
      dependencies.out << outcome.membership.message() << "; starting again" << std::endl;
      options.resume = job.file.has_checkpoint();
      client.only_running = only_running;
    } else if (absl::IsFailedPrecondition(outcome.membership) && comeback.Begin()) {
      dependencies.out << outcome.membership.message() << "; rejoining" << std::endl;
      client.only_running = true;
      was_member = true;
    } else if (!(absl::IsAlreadyExists(outcome.status) ||
                 (was_member && MayBeAdmittedLater(outcome.status))) ||
               !comeback.Wait()) {
      return outcome;
    }
  }
}

DataServer::Options ServingOptions(const Job& job, const WorkerOptions& options) {
  DataServer::Options serving = {job, options.token, *options.serve_data, options.tls};
  // Without a secret, whoever reaches the port may read the data.
  serving.loopback_only =
      options.token.empty() && options.tls.client_ca.empty() && !options.insecure;
  serving.warn = [](const std::string& line) {
    std::cerr << absl::StrCat("ps-worker: data server: ", line, "\n");
  };
  return serving;
}

// Serves until all workers have read their rows. Prints the number of batches.
void FinishServing(const DataServer& serving, const WorkerOptions& options,
                   const WorkerDependencies& dependencies) {
  const bool idle =
      serving.AwaitIdle(options.timeout, [&] { return dependencies.stop.requested(); });
  dependencies.out << "served " << serving.batches_made() << " batches"
                   << (idle ? "" : "; some workers still have their rows open") << std::endl;
}

}  // namespace

WorkerOutcome RunWorker(const WorkerOptions& options, const WorkerDependencies& dependencies) {
  const absl::Status valid = CheckOptions(options);
  if (!valid.ok()) return {valid, absl::OkStatus()};
  const absl::Status secure = CheckSecurity(options);
  if (!secure.ok()) return {secure, absl::OkStatus()};
  const absl::StatusOr<Job> job = LoadJob(options, dependencies);
  if (!job.ok()) return {job.status(), absl::OkStatus()};
  if (options.serve_data.has_value() && options.server.empty()) {
    return {ServeData(ServingOptions(*job, options), dependencies.stop, dependencies.out),
            absl::OkStatus()};
  }
  std::unique_ptr<DataServer> serving;
  if (options.serve_data.has_value()) {
    absl::StatusOr<std::unique_ptr<DataServer>> started =
        StartServing(ServingOptions(*job, options), dependencies.out);
    if (!started.ok()) return {started.status(), absl::OkStatus()};
    serving = *std::move(started);
  }
  const absl::StatusOr<Placement> placement = FindPlacement(options, dependencies);
  if (!placement.ok()) return {placement.status(), absl::OkStatus()};
  // If only the rank is known, as for the workers of ps-launch, it stands for the local
  // rank.
  const uint32_t local_rank =
      placement->local_rank.value_or(placement->rank.value_or(options.in_process.number));
  const absl::StatusOr<DeviceChoice> device =
      ChooseDevice(options.device, options.precision, local_rank, dependencies.accelerators);
  if (!device.ok()) return {device.status(), absl::OkStatus()};
  if (!options.server.empty()) {
    const ClientOptions client = ClientOptionsOf(*job, options, *placement, local_rank);
    WorkerOutcome outcome = client.max_workers > 0
                                ? RunElastic(*job, options, *device, client, dependencies)
                                : RunStatic(*job, options, *device, client, dependencies);
    // Workers that need a little longer still read their rows from here.
    if (serving != nullptr && outcome.status.ok()) FinishServing(*serving, options, dependencies);
    return outcome;
  }

  const bool needs_server = Trains(options);
  const uint32_t world_size = placement->world_size.value_or(1);
  if (needs_server || world_size > 1) {
    return {
        absl::InvalidArgumentError(absl::StrCat(
            "--server is missing: ", needs_server ? "training needs a server"
                                                  : absl::StrCat(world_size, " workers need one"))),
        absl::OkStatus()};
  }
  SoleWorker team;
  const auto use = [&] { return UseModel(*job, options, *device, team, dependencies); };
  return {CatchOutOfMemory(use), absl::OkStatus()};
}

std::string OutputOfRank(const std::string& output, uint32_t rank) {
  return WithSuffix(output, absl::StrCat("rank", rank));
}

}  // namespace syncgrads
