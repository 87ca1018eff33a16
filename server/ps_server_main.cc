// ps-server: one of a job's gradient-sync servers.
//
// Exit codes: 0, stopped or (with --exit_when_done) done; 1, a flag is wrong;
// 2, the coordinator will not have this server; 3, another server keeps its state in
// the same directory; 4, with --exit_when_done: the coordinator has been out of reach
// for longer than any worker waits; 128, the port is taken; 129, state cannot be kept.

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/process_setup.h"
#include "server/server.h"
#include "third_party/grpc/pollers.h"

ABSL_FLAG(uint16_t, port, 7000, "port to listen on; 0 picks one and prints it");
ABSL_FLAG(std::string, bind, "0.0.0.0", "address to listen on");
ABSL_FLAG(uint32_t, servers, 1, "on server 0: how many servers there are");
ABSL_FLAG(uint32_t, index, 0, "position of this server; 0 coordinates");
ABSL_FLAG(std::string, coordinator, "", "on servers from 1 on: host:port of server 0");
ABSL_FLAG(std::string, advertise, "",
          "host:port that workers reach this server at; by default the port, on the host that "
          "this server is seen from");
ABSL_FLAG(std::string, server_token, "", "what servers say to each other; the same on all");
ABSL_FLAG(uint32_t, pollers, 0,
          "threads that poll the network, of as many as half the processors; 0: one for each four "
          "processors, and all of them when payloads come over the network");
ABSL_FLAG(absl::Duration, heartbeat, absl::Seconds(2), "how often workers show that they live");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(30), "a worker not heard of for so long is dropped");
ABSL_FLAG(absl::Duration, join_timeout, absl::Minutes(1),
          "A worker that joins a running job and has not been brought up to date for so long is "
          "dropped.");
ABSL_FLAG(absl::Duration, stream_grace, absl::Seconds(5),
          "a worker whose stream broke is dropped after so long");
ABSL_FLAG(absl::Duration, stall_warning, absl::Seconds(10),
          "a round that waits for so long is reported, with whom it waits for");
ABSL_FLAG(bool, shared_memory, true, "take payloads of workers on this host from shared memory");
ABSL_FLAG(bool, unix_socket, true, "take streams of workers on this host from a unix socket");
ABSL_FLAG(std::string, congestion_control, "",
          "TCP congestion control of what this server sends; by default the kernel's");
ABSL_FLAG(int, closing_threads, 0, "threads that reduce large chunks; 0: one for each processor");
ABSL_FLAG(std::string, state, "",
          "directory in which state is kept over a crash, one for each server; \"none\": it is not "
          "kept; by default one in memory, /dev/shm/syncgrads-UID/..., that a server with the "
          "same arguments finds again");
ABSL_FLAG(bool, exit_when_done, false, "exit when the last job has ended");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(10),
          "after SIGTERM: how long open jobs may go on");

namespace syncgrads::server {
namespace {

class LogJournal : public Journal {
 public:
  explicit LogJournal(uint32_t index)
      : log_("ps-server", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    log_.set_pattern("%Y-%m-%dT%H:%M:%S.%e %L ps-server " + std::to_string(index) + ": %v");
    log_.flush_on(spdlog::level::info);
  }
  void Note(const std::string& line) override { log_.info(line); }
  void Warn(const std::string& line) override { log_.warn(line); }

 private:
  spdlog::logger log_;
};

// Waits for SIGTERM or SIGINT, with all threads' blocked, for so long.
bool StopAskedWithin(const sigset_t& signals, absl::Duration timeout) {
  const timespec wait = absl::ToTimespec(timeout);
  return sigtimedwait(&signals, nullptr, &wait) > 0;
}

// The same for the same arguments, and another for any that serve something else.
std::string DefaultState(const ServerOptions& options) {
  std::string name = absl::StrCat("server-", options.index, "-", options.bind, "-", options.port);
  if (!options.coordinator.empty()) absl::StrAppend(&name, "-of-", options.coordinator);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  }
  return absl::StrCat("/dev/shm/syncgrads-", geteuid(), "/", name);
}

int ExitCodeOfStart(const absl::Status& start) {
  switch (start.code()) {
    case absl::StatusCode::kFailedPrecondition:
      return 3;
    case absl::StatusCode::kUnavailable:
      return 128;
    case absl::StatusCode::kResourceExhausted:
      return 129;
    default:
      return 1;
  }
}

int ExitCodeOfEnd(const absl::Status& end) {
  switch (end.code()) {
    // Its own disk is what can get better.
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return 129;
    case absl::StatusCode::kDeadlineExceeded:
      return 4;
    default:
      return 2;
  }
}

// Before any thread starts, so that only this one takes them; the first thing that
// happens, so that one which comes early is not the end.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

int Main(const sigset_t& signals) {
  ServerOptions options;
  options.bind = absl::GetFlag(FLAGS_bind);
  options.port = absl::GetFlag(FLAGS_port);
  options.index = absl::GetFlag(FLAGS_index);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.advertise = absl::GetFlag(FLAGS_advertise);
  options.server_token = absl::GetFlag(FLAGS_server_token);
  options.heartbeat = absl::GetFlag(FLAGS_heartbeat);
  options.lease = absl::GetFlag(FLAGS_lease);
  options.stream_grace = absl::GetFlag(FLAGS_stream_grace);
  options.join_timeout = absl::GetFlag(FLAGS_join_timeout);
  options.stall_warning = absl::GetFlag(FLAGS_stall_warning);
  options.closing_threads = absl::GetFlag(FLAGS_closing_threads);
  options.congestion_control = absl::GetFlag(FLAGS_congestion_control);
  options.shared_memory = absl::GetFlag(FLAGS_shared_memory);
  options.unix_socket = absl::GetFlag(FLAGS_unix_socket);

  // A worker that it could still serve has been dropped, or looks for the coordinator too.
  if (absl::GetFlag(FLAGS_exit_when_done)) {
    options.coordinator_patience = options.lease + options.stream_grace;
  }

  options.first_generation = static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now()));
  options.state = absl::GetFlag(FLAGS_state);
  if (options.state.empty()) {
    options.state = DefaultState(options);
  } else if (options.state == "none") {
    options.state.clear();
  }

  LogJournal journal(options.index);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, journal);
  if (!server.ok()) {
    journal.Warn(server.status().ToString());
    return ExitCodeOfStart(server.status());
  }
  std::cout << "ps-server " << options.index << " listening on " << options.bind << ":"
            << (*server)->port() << std::endl;

  const bool exit_when_done = absl::GetFlag(FLAGS_exit_when_done);
  while (!StopAskedWithin(signals, absl::Milliseconds(100))) {
    if (exit_when_done && (*server)->all_jobs_done()) {
      journal.Note("the last job has ended; exits");
      return 0;
    }
    if (const absl::Status status = (*server)->status(); !status.ok()) {
      journal.Warn(status.ToString());
      return ExitCodeOfEnd(status);
    }
  }
  const absl::Duration patience = absl::GetFlag(FLAGS_drain_timeout);
  journal.Note("drains: no new jobs, and open ones have " + absl::FormatDuration(patience));
  (*server)->Drain();
  const absl::Time deadline = absl::Now() + patience;
  while ((*server)->has_open_jobs() && absl::Now() < deadline) {
    // A second signal is impatience.
    if (StopAskedWithin(signals, absl::Milliseconds(50))) break;
  }
  journal.Note("stops");
  return 0;
}

}  // namespace
}  // namespace syncgrads::server

int main(int argc, char** argv) {
  const sigset_t signals = syncgrads::server::BlockStopSignals();
  syncgrads::SetUpProcess();
  absl::SetProgramUsageMessage("A gradient-sync server of syncgrads.");
  if (absl::ParseCommandLine(argc, argv).size() > 1) {
    std::cerr << "ps-server takes flags only; see --help" << std::endl;
    return 1;
  }
  syncgrads::SetPollers(absl::GetFlag(FLAGS_pollers));
  return syncgrads::server::Main(signals);
}
