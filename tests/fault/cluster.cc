#include "tests/fault/cluster.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"

namespace syncgrads::fault {
namespace {

constexpr char kListening[] = " listening on ";
constexpr absl::Duration kDeath = absl::Minutes(1);

std::string CompressionOf(const JobKind& kind, const char* codec) {
  // With the optimizer on the servers, results are parameters, which cannot be compressed.
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
  // Only large payloads use shared memory. RELU, because so many hyperbolic tangents would take
  // most of the time of a run.
  const char* layer =
      kind.shared_memory ? "outputs: 4500 activation: RELU" : "outputs: 16 activation: TANH";
  return absl::StrFormat(
      "name: \"chaos\" seed: 7 steps: %d workers: %d batch_size: 8 threads: 1\n"
      "data { generated { rows: 3000 seed: 1 } mode: %s }\n"
      "model { layers { dense { %s } } layers { dense { outputs: 1 } } }\n"
      "loss { sigmoid_cross_entropy {} } optimizer { adam {} } optimizer_placement: %s "
      "chunk_bytes: %d\n%s",
      StepsOf(kind), kWorkers, kind.dynamic ? "DYNAMIC" : "SHARDS", layer,
      kind.servers_optimize ? "SERVERS" : "WORKERS", kind.shared_memory ? 16 << 10 : 64,
      TraitOf(kind));
}

std::string Loopback(uint16_t port) { return absl::StrCat("127.0.0.1:", port); }

absl::Status Failed(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status MountSmall(const std::string& directory) {
  std::filesystem::create_directories(directory);
  const std::string size = absl::StrCat("mode=0700,size=", kSmallStateBytes);
  if (mount("tmpfs", directory.c_str(), "tmpfs", 0, size.c_str()) == 0) return absl::OkStatus();
  return Failed(absl::StrCat("a tmpfs cannot be mounted at ", directory));
}

// The number of free descriptors that the server keeps, and the number of connections that then
// arrive.
constexpr rlim_t kSpareDescriptors = 8;
constexpr int kFlood = 64;

}  // namespace

bool CanMount() {
  if (unshare(CLONE_NEWNS) != 0) return false;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  std::string directory = "/tmp/syncgrads-mount-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return false;
  const bool mounted = MountSmall(directory).ok();
  if (mounted) umount2(directory.c_str(), MNT_DETACH);
  std::filesystem::remove(directory);
  return mounted;
}

Cluster::Cluster(const Schedule& schedule, const Programs& programs, const std::string& directory,
                 FaultyNetwork& network)
    : schedule_(schedule),
      programs_(programs),
      directory_(directory),
      network_(network),
      job_(absl::StrCat(directory, "/chaos.job")) {}

Cluster::~Cluster() {
  for (const auto& [server, sockets] : flood_) absl::c_for_each(sockets, close);
  if (!Has(schedule_, FaultKind::kFillState)) return;
  for (int server = 0; server < kServers; ++server) {
    servers_[server].clear();
    umount2(StateOf(server).c_str(), MNT_DETACH);
  }
}

std::string Cluster::StateOf(int server) const {
  return absl::StrCat(directory_, "/state-", server);
}

std::string Cluster::FillerOf(int server) const { return absl::StrCat(StateOf(server), "/filler"); }

absl::Status Cluster::MountStates() const {
  for (int server = 0; server < kServers; ++server) {
    SYNCGRADS_RETURN_IF_ERROR(MountSmall(StateOf(server)));
  }
  return absl::OkStatus();
}

std::vector<std::unique_ptr<Life>>& Cluster::Lives(ProcessId process) {
  return process.role == ProcessId::Role::kServer ? servers_[process.index]
                                                  : workers_[process.index];
}

absl::Status Cluster::Start(absl::Time deadline) {
  std::ofstream(job_) << JobOf(schedule_.job);
  if (Has(schedule_, FaultKind::kFillState)) SYNCGRADS_RETURN_IF_ERROR(MountStates());
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
      "--port=0", "--bind=127.0.0.1", "--drain_timeout=2m", "--heartbeat_interval=200ms",
      // With visits, which may come after the end of the job, the driver stops the servers.
      absl::StrCat("--exit_when_done=", Has(schedule_, FaultKind::kVisit) ? "false" : "true"),
      absl::StrCat("--lease=", absl::FormatDuration(LeaseOf(schedule_))),
      absl::StrCat("--stream_grace=", absl::FormatDuration(GraceOf(schedule_))),
      absl::StrCat("--shared_memory=", schedule_.job.shared_memory ? "true" : "false"),
      // If there is a proxy, streams must go through it.
      absl::StrCat("--unix_socket=", network_.PortOf(server) == 0 ? "true" : "false"),
      absl::StrCat("--state=", StateOf(server))};
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
  if (line.ok()) {
    reserved_.erase(server);
    return true;
  }
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
  if (process.role == ProcessId::Role::kServer) {
    reserved_.try_emplace(process.index, ports_[process.index]);
  }
  return absl::OkStatus();
}

bool Cluster::HasEnded(ProcessId process) { return HasEnded(life(process)); }

bool Cluster::HasEnded(Life& life) {
  if (life.exit.has_value()) return true;
  const auto exit = life.process->Wait(absl::ZeroDuration());
  if (exit.ok()) life.exit = *exit;
  return exit.ok();
}

absl::Status Cluster::FillState(int server) {
  const std::string path = FillerOf(server);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return Failed(path);
  // Writes large pieces and then small ones, until no page is free.
  for (size_t piece : {size_t{1} << 20, size_t{1} << 12}) {
    const std::string bytes(piece, 'x');
    while (write(file, bytes.data(), bytes.size()) > 0) continue;
  }
  const bool full = errno == ENOSPC;
  close(file);
  return full ? absl::OkStatus() : Failed(path);
}

void Cluster::FreeState(int server) { std::filesystem::remove(FillerOf(server)); }

absl::Status Cluster::TakeDescriptors(int server) {
  const pid_t pid = life(ServerId(server)).process->pid();
  const std::filesystem::directory_iterator open(absl::StrCat("/proc/", pid, "/fd"));
  rlimit limit;
  if (prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) != 0) return Failed("prlimit");
  limit.rlim_cur = static_cast<rlim_t>(std::distance(begin(open), end(open))) + kSpareDescriptors;
  if (prlimit(pid, RLIMIT_NOFILE, &limit, nullptr) != 0) return Failed("prlimit");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(ports_[server]);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < kFlood; ++i) {
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection < 0) return Failed("socket");
    flood_[server].push_back(connection);
    if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 &&
        errno != EINPROGRESS) {
      return Failed("connect");
    }
  }
  return absl::OkStatus();
}

void Cluster::GiveDescriptorsBack(int server) {
  for (const int connection : std::exchange(flood_[server], {})) close(connection);
  const pid_t pid = life(ServerId(server)).process->pid();
  rlimit limit;
  if (HasEnded(ServerId(server)) || prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  prlimit(pid, RLIMIT_NOFILE, &limit, nullptr);
}

absl::Status Cluster::BlockLog(int server) {
  testing::Process& process = *life(ServerId(server)).process;
  process.HoldOutput(true);
  const std::string path = absl::StrCat("/proc/", process.pid(), "/fd/2");
  const int log = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (log < 0) return Failed(path);
  // A smaller pipe is filled faster. If the size cannot be changed, the pipe is used as it is.
  fcntl(log, F_SETPIPE_SZ, 4096);
  const std::string line(63, '-');
  while (write(log, absl::StrCat(line, "\n").data(), line.size() + 1) > 0) continue;
  const bool full = errno == EAGAIN;
  close(log);
  return full ? absl::OkStatus() : Failed(path);
}

void Cluster::UnblockLog(int server) { life(ServerId(server)).process->HoldOutput(false); }

absl::Status Cluster::StartVisit(const Fault& fault) {
  Visit visit;
  visit.may_be_refused = fault.may_be_refused;
  visit.life = std::make_unique<Life>();
  const uint16_t coordinator = network_.PortOf(0);
  SYNCGRADS_ASSIGN_OR_RETURN(
      visit.life->process,
      testing::Process::Start(
          {.program = programs_.visitor,
           .args = {absl::StrCat("--server=", Loopback(coordinator == 0 ? ports_[0] : coordinator)),
                    absl::StrCat("--job=visit-", visits_.size()),
                    absl::StrCat("--times=", fault.times),
                    absl::StrCat("--bytes=", fault.bytes)}}));
  visits_.push_back(std::move(visit));
  return absl::OkStatus();
}

bool Cluster::VisitsHaveEnded() {
  return absl::c_all_of(visits_, [this](const Visit& visit) { return HasEnded(*visit.life); });
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
  for (size_t i = 0; i < visits_.size(); ++i) {
    std::ofstream(absl::StrCat(directory_, "/visit-", i, ".log"))
        << visits_[i].life->process->output();
  }
}

}  // namespace syncgrads::fault
