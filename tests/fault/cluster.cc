#include "tests/fault/cluster.h"

#include <signal.h>

#include <fstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"

namespace syncgrads::fault {
namespace {

constexpr char kListening[] = " listening on ";
constexpr absl::Duration kDeath = absl::Seconds(20);

std::string CompressionOf(const JobKind& kind, const char* codec) {
  // Parameters come back as they are.
  return absl::StrFormat(
      "compression { min_elements: 1 push { codec: %s } %s }\n", codec,
      kind.servers_optimize ? "" : absl::StrCat("result { codec: ", codec, " }"));
}

std::string TraitOf(const JobKind& kind) {
  switch (kind.trait) {
    case Trait::kNone:
      return "elastic {}\n";
    case Trait::kNotElastic:
      return "";
    case Trait::kCheckpoints:
      return "elastic {} checkpoint { directory: \"checkpoints\" every_steps: 50 keep: 100 }\n";
    case Trait::kQuorum:
      return "elastic {} consistency { quorum { least: 2 kept: 16 } }\n";
    case Trait::kFloat16:
      return absl::StrCat("elastic {} ", CompressionOf(kind, "FLOAT16"));
    case Trait::kInt8:
      return absl::StrCat("elastic {} ", CompressionOf(kind, "INT8"));
    case Trait::kTopK:
      return absl::StrCat("elastic {} ", CompressionOf(kind, "TOP_K"));
    case Trait::kOneBit:
      return absl::StrCat("elastic {} ", CompressionOf(kind, "ONE_BIT"));
  }
  return "";
}

std::string JobOf(const JobKind& kind) {
  // Small payloads are not worth sharing. The hyperbolic tangent of so many would take
  // most of a run's time.
  const char* layer =
      kind.shared_memory ? "outputs: 4500 activation: RELU" : "outputs: 16 activation: TANH";
  return absl::StrFormat(
      "name: \"chaos\" seed: 7 steps: %d workers: %d batch_size: 8 threads: 1\n"
      "data { generated { rows: 3000 seed: 1 } mode: %s }\n"
      "model { layers { dense { %s } } layers { dense { outputs: 1 } } }\n"
      "loss { sigmoid_cross_entropy {} } optimizer { adam {} } place: %s chunk_bytes: %d\n%s",
      kSteps, kWorkers, kind.dealt ? "DEALT" : "SHARDS", layer,
      kind.servers_optimize ? "SERVERS" : "WORKERS", kind.shared_memory ? 16 << 10 : 64,
      TraitOf(kind));
}

std::string Loopback(uint16_t port) { return absl::StrCat("127.0.0.1:", port); }

}  // namespace

Cluster::Cluster(const Schedule& schedule, const Programs& programs, const std::string& directory,
                 FaultyNetwork& network)
    : schedule_(schedule),
      programs_(programs),
      directory_(directory),
      network_(network),
      job_(absl::StrCat(directory, "/chaos.job")) {}

std::vector<std::unique_ptr<Life>>& Cluster::Lives(ProcessId process) {
  return process.role == ProcessId::Role::kServer ? servers_[process.index]
                                                  : workers_[process.index];
}

absl::Status Cluster::Start(absl::Time deadline) {
  std::ofstream(job_) << JobOf(schedule_.job);
  for (int server = 0; server < kServers; ++server) {
    SYNCGRADS_RETURN_IF_ERROR(StartServer(server));
    testing::Process& process = *life(ServerId(server)).process;
    SYNCGRADS_ASSIGN_OR_RETURN(const std::string line,
                               process.WaitForLine(kListening, deadline - absl::Now()));
    uint32_t port = 0;
    if (!absl::SimpleAtoi(line.substr(line.rfind(':') + 1), &port)) {
      return absl::InternalError(absl::StrCat("no port in \"", line, "\""));
    }
    ports_[server] = static_cast<uint16_t>(port);
    network_.SetUpstream(server, ports_[server]);
  }
  for (int worker = 0; worker < kWorkers; ++worker) {
    SYNCGRADS_RETURN_IF_ERROR(StartWorker(worker));
  }
  return absl::OkStatus();
}

std::vector<std::string> Cluster::ServerFlags(int server) const {
  std::vector<std::string> flags = {
      "--port=0", "--bind=127.0.0.1", "--exit_when_done", "--drain_timeout=2m", "--heartbeat=200ms",
      absl::StrCat("--lease=", absl::FormatDuration(LeaseOf(schedule_))),
      absl::StrCat("--stream_grace=", absl::FormatDuration(GraceOf(schedule_))),
      absl::StrCat("--shared_memory=", schedule_.job.shared_memory ? "true" : "false"),
      // Streams go by way of the proxy, where there is one.
      absl::StrCat("--unix_socket=", network_.PortOf(server) == 0 ? "true" : "false"),
      absl::StrCat("--state=", directory_, "/state-", server)};
  if (server == 0) {
    flags.push_back(absl::StrCat("--servers=", kServers));
    return flags;
  }
  const uint16_t coordinator = network_.PortOf(0);
  flags.push_back(absl::StrCat("--index=", server));
  flags.push_back(
      absl::StrCat("--coordinator=", Loopback(coordinator == 0 ? ports_[0] : coordinator)));
  if (const uint16_t port = network_.PortOf(server); port != 0) {
    flags.push_back(absl::StrCat("--advertise=", Loopback(port)));
  }
  return flags;
}

absl::Status Cluster::StartServer(int server) {
  auto life = std::make_unique<Life>();
  SYNCGRADS_ASSIGN_OR_RETURN(life->process, testing::Process::Start({.program = programs_.server,
                                                                     .args = ServerFlags(server)}));
  network_.SetProcess(ServerId(server), life->process->pid());
  servers_[server].push_back(std::move(life));
  return absl::OkStatus();
}

absl::Status Cluster::StartWorker(int worker) {
  auto life = std::make_unique<Life>();
  life->output = absl::StrCat(directory_, "/worker-", worker, ".", workers_[worker].size());
  life->events = absl::StrCat(life->output, ".events");
  const uint16_t coordinator = network_.PortOf(0);
  std::vector<std::string> flags = {
      absl::StrCat("--job=", job_),
      absl::StrCat("--server=", Loopback(coordinator == 0 ? ports_[0] : coordinator)),
      absl::StrCat("--rank=", worker),
      absl::StrCat("--world_size=", kWorkers),
      absl::StrCat("--name=worker-", worker),
      absl::StrCat("--event_log=", life->events),
      absl::StrCat("--output=", life->output, ".safetensors"),
      absl::StrCat("--connections_per_server=", schedule_.connections),
      "--output_per_rank",
      "--timeout=1m"};
  if (!workers_[worker].empty()) flags.push_back("--only_running");
  SYNCGRADS_ASSIGN_OR_RETURN(life->process, testing::Process::Start({.program = programs_.worker,
                                                                     .args = std::move(flags)}));
  network_.SetProcess(WorkerId(worker), life->process->pid());
  workers_[worker].push_back(std::move(life));
  return absl::OkStatus();
}

absl::Status Cluster::Restart(ProcessId process) {
  return process.role == ProcessId::Role::kServer ? StartServer(process.index)
                                                  : StartWorker(process.index);
}

absl::StatusOr<bool> Cluster::Listens(int server) {
  const auto line = life(ServerId(server)).process->WaitForLine(kListening, absl::ZeroDuration());
  if (line.ok()) return true;
  if (absl::IsDeadlineExceeded(line.status())) return false;
  return absl::UnavailableError(
      absl::StrCat("server ", server, " was started again: ", line.status().message()));
}

void Cluster::Signal(ProcessId process, int signal) {
  Life& newest = life(process);
  if (newest.exit.has_value()) return;
  if (signal == SIGTERM) newest.told_to_stop = true;
  newest.process->Kill(signal);
}

absl::Status Cluster::Kill(ProcessId process) {
  Signal(process, SIGKILL);
  Life& newest = life(process);
  SYNCGRADS_ASSIGN_OR_RETURN(newest.exit, newest.process->Wait(kDeath));
  return absl::OkStatus();
}

bool Cluster::HasEnded(ProcessId process) {
  Life& newest = life(process);
  if (newest.exit.has_value()) return true;
  const auto exit = newest.process->Wait(absl::ZeroDuration());
  if (exit.ok()) newest.exit = *exit;
  return exit.ok();
}

void Cluster::WriteOutputs() const {
  const auto write = [this](const char* role, size_t index,
                            const std::vector<std::unique_ptr<Life>>& lives) {
    for (size_t i = 0; i < lives.size(); ++i) {
      std::ofstream(absl::StrCat(directory_, "/", role, "-", index, ".", i, ".log"))
          << lives[i]->process->output();
    }
  };
  for (size_t i = 0; i < servers_.size(); ++i) write("server", i, servers_[i]);
  for (size_t i = 0; i < workers_.size(); ++i) write("worker", i, workers_[i]);
}

}  // namespace syncgrads::fault
