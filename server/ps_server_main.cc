// ps-server: one of a job's gradient-sync servers.

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/http/http_server.h"
#include "common/log_level.h"
#include "common/net/address.h"
#include "common/process_setup.h"
#include "common/renamed_flags.h"
#include "common/rpc/build_info.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "common/tls/tls_flags.h"
#include "server/metrics/status_pages.h"
#include "server/server.h"
#include "server/service/events/queued_journal.h"
#include "server/service_manager.h"
#include "server/watchdog.h"
#include "third_party/grpc/log.h"
#include "third_party/grpc/pollers.h"

ABSL_FLAG(uint16_t, port, 7000, "port to listen on; 0 picks a free port and prints it");
ABSL_FLAG(std::string, bind, "",
          "address to listen on: a host without a port; default: all addresses of this host with "
          "--tls_client_ca, --tokens_file or --insecure, otherwise 127.0.0.1");
ABSL_FLAG(
    bool, insecure, false,
    "let any host in without certificates and tokens: whoever reaches the port can start jobs, "
    "use up memory, and see and change jobs that have no token");
ABSL_FLAG(
    std::string, tokens_file, "",
    "file with the tokens and certificate names that have a role, read again when it changes: "
    "lines of ROLE JOBS token:TOKEN, or of ROLE JOBS san:PATTERN; roles are server, worker, "
    "operator and viewer");
ABSL_FLAG(uint32_t, servers, 1, "server 0 only: number of servers");
ABSL_FLAG(uint32_t, index, 0, "index of this server; server 0 is the coordinator");
ABSL_FLAG(
    std::string, coordinator, "",
    "HOST:PORT of server 0; required on all other servers; on server 0: empty, or the same as "
    "--advertise");
ABSL_FLAG(
    std::string, advertise, "",
    "HOST or HOST:PORT to which workers connect; default port: the port that this server listens "
    "on; default host: the source address of its connection to server 0 (on server 0: the host in "
    "the workers' --server)");
ABSL_FLAG(
    std::string, tls_client_ca, "",
    "PEM file with the certificates of the authorities that have signed the peers' "
    "certificates; if it is set, every peer must have one, and --tls_certificate and --tls_key "
    "are this server's");
ABSL_FLAG(std::string, server_token, "",
          "shared secret of the servers; must be the same on all. Other users can read a command "
          "line: prefer --server_token_file, or SYNCGRADS_SERVER_TOKEN in the environment");
ABSL_FLAG(std::string, server_token_file, "", "file with the server token in its first line");
ABSL_FLAG(uint32_t, pollers, 0,
          "number of gRPC polling threads, at most one per two processors; 0: one per four "
          "processors, and the maximum once payloads arrive over the network");
ABSL_FLAG(absl::Duration, heartbeat_interval, absl::Seconds(2),
          "interval of the workers' heartbeats");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(30),
          "drop a worker this long after its last heartbeat");
ABSL_FLAG(
    absl::Duration, join_timeout, absl::Minutes(1),
    "drop a worker that joins a running job if it has not received the job's state within this "
    "time");
ABSL_FLAG(absl::Duration, stream_grace, absl::Seconds(5),
          "drop a worker this long after its stream broke, unless it reconnects");
ABSL_FLAG(
    absl::Duration, abandoned_job_ttl, absl::Minutes(10),
    "how long a job without a heartbeat from any worker keeps its state, so that workers that "
    "return can continue; inf: until a worker returns");
ABSL_FLAG(absl::Duration, stall_warning, absl::Seconds(10),
          "log a warning with the missing workers when a round has been open for this long");
ABSL_FLAG(bool, shared_memory, true, "accept payloads from workers on this host in shared memory");
ABSL_FLAG(bool, unix_socket, true, "accept streams from workers on this host on a unix socket");
ABSL_FLAG(bool, reflection, false,
          "offer gRPC reflection, with which tools such as grpcurl list services; not with rules, "
          "because it has no roles");
ABSL_FLAG(
    std::string, congestion_control, "",
    "TCP congestion control algorithm for data that this server sends; default: the kernel's");
ABSL_FLAG(uint32_t, max_groups, 1024,
          "server 0 only: maximum number of groups per job; each name of a collective is a group");
ABSL_FLAG(uint64_t, max_chunks, 262144,
          "server 0 only: maximum number of chunks of all groups of a job together");
ABSL_FLAG(uint32_t, max_jobs, 1000, "server 0 only: maximum number of open jobs");
ABSL_FLAG(uint32_t, max_workers, 4096,
          "server 0 only: maximum number of workers (world_size, max_workers) of a job");
ABSL_FLAG(
    absl::Duration, hello_timeout, absl::Seconds(10),
    "close a connection if its handshake has not ended within this time; end a stream or "
    "call if its first message has not arrived within this time, or if its end, its answer or "
    "a message of an optimizer's state has not been read within this time");
ABSL_FLAG(
    uint32_t, max_connections, 10000,
    "maximum number of open connections; never more than three quarters of the process's limit "
    "of file descriptors");
ABSL_FLAG(uint32_t, max_connections_per_peer, 2000,
          "maximum number of open TCP connections from one IPv4 address or one IPv6 /64 network");
ABSL_FLAG(int, closing_threads, 0, "threads that reduce large chunks; 0: one per processor");
ABSL_FLAG(
    std::string, state, "",
    "directory for the state that survives a crash, a different one for each server; \"none\": "
    "keep no state; default: a directory in memory, /dev/shm/syncgrads-UID/..., whose name depends "
    "on the flags, so that a server restarted with the same flags continues");
ABSL_FLAG(syncgrads::LogLevel, log_level, syncgrads::LogLevel::kInfo,
          "how much is logged: debug (groups and other details too), info, or warning");
ABSL_FLAG(uint32_t, log_lines, 10000,
          "maximum number of log lines that are queued while stderr is blocked; further lines are "
          "dropped, and their number is logged");
ABSL_FLAG(
    std::string, metrics, "",
    "HOST:PORT to listen on for HTTP requests: a page for browsers (/), metrics (/metrics), probes "
    "(/livez, /readyz) and the status (/status.json); port 0 picks a free port and prints it; with "
    "--tls_client_ca or --tokens_file, all but the probes need the role viewer; default: no HTTP");
ABSL_FLAG(bool, exit_when_done, false, "exit when the last job has ended");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(10),
          "how long open jobs may continue after SIGTERM, SIGINT or SIGUSR1");
ABSL_FLAG(
    uint32_t, stopped_exit_code, 0,
    "exit code after SIGTERM, SIGINT or SIGUSR1, at most 255; a scheduler that takes 0 for the "
    "end of the work needs another one, such as 143");

namespace syncgrads::server {
namespace {

constexpr RenamedFlag kRenamedFlags[] = {{"heartbeat", "heartbeat_interval"}};

// Waits at most `timeout` for one of `signals`. Returns whether one has come. All threads must
// have these signals blocked.
bool StopRequestedWithin(const sigset_t& signals, absl::Duration timeout) {
  const timespec wait = absl::ToTimespec(timeout);
  return sigtimedwait(&signals, nullptr, &wait) > 0;
}

// Returns the default state directory. It depends only on the user and on the flags --index,
// --bind, --port and --coordinator: a server that is restarted with the same flags finds its
// state, and servers that differ in one of them have different directories.
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
    // A retryable code: the server's own disk may have space later.
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return 129;
    case absl::StatusCode::kDeadlineExceeded:
      return 4;
    default:
      return 2;
  }
}

// Blocks SIGTERM, SIGINT and SIGUSR1: a scheduler sends the same signal to servers and workers.
// Called before any thread of ours starts, so that all threads inherit the mask and only
// sigtimedwait() receives the signals. Called first in main(), so that an early signal does not
// kill the process.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Returns the address in --metrics; nullopt if the flag is not set.
absl::StatusOr<std::optional<HostPort>> MetricsAddress() {
  const std::string flag = absl::GetFlag(FLAGS_metrics);
  if (flag.empty()) return std::nullopt;
  SYNCGRADS_ASSIGN_OR_RETURN(HostPort address, ParseListenAddress("--metrics", flag));
  return std::optional<HostPort>(std::move(address));
}

// Probes need no role.
HttpSecurity PagesSecurity(const ServerOptions& options, Server& server, Journal& journal) {
  HttpSecurity security;
  if (!options.tls.certificate.empty()) security.tls = options.tls;
  security.warn = [&journal](const std::string& line) { journal.Warn(line); };
  security.refuse = [&server](const HttpCaller& caller,
                              const std::string& path) -> std::optional<HttpReply> {
    if (path == "/livez" || path == "/readyz") return std::nullopt;
    const absl::Status permitted = server.CheckPage(caller.peer, caller.names, caller.token);
    if (permitted.ok()) return std::nullopt;
    HttpReply reply;
    reply.body = absl::StrCat(permitted.message(), "\n");
    if (absl::IsUnavailable(permitted)) {
      reply.status = 503;
    } else if (caller.names.empty() && caller.token.empty()) {
      reply.status = 401;
      // Browsers then ask for a password: a token.
      reply.headers = {{"WWW-Authenticate", "Basic realm=\"syncgrads: a token as password\""}};
    } else {
      reply.status = 403;
    }
    return reply;
  };
  return security;
}

// Returns a line for the log: who can use this server. Not for servers of this host only.
std::string SecurityOf(const ServerOptions& options) {
  const bool encrypts = !options.tls.certificate.empty();
  if (!options.tls.client_ca.empty()) {
    return options.tokens_file.empty()
               ? "connections are encrypted, and peers need a certificate with the name of a role"
               : "connections are encrypted, and peers need a certificate and a role";
  }
  if (!options.tokens_file.empty()) {
    return encrypts ? "connections are encrypted, and peers need a token"
                    : "peers need a token, but connections are NOT encrypted: whoever can read the "
                      "network learns the tokens";
  }
  return "INSECURE: any host can start jobs here, use up memory, and see and change jobs without a "
         "token (--insecure)";
}

int Main(const sigset_t& signals) {
  const uint32_t stopped_exit_code = absl::GetFlag(FLAGS_stopped_exit_code);
  if (stopped_exit_code > 255) {
    std::cerr << "ps-server: --stopped_exit_code is " << stopped_exit_code << ", at most 255"
              << std::endl;
    return 1;
  }
  ServerOptions options;
  options.tls = TlsFromFlags();
  options.tls.client_ca = absl::GetFlag(FLAGS_tls_client_ca);
  options.tokens_file = absl::GetFlag(FLAGS_tokens_file);
  const bool knows_callers = !options.tls.client_ca.empty() || !options.tokens_file.empty();
  const bool insecure = absl::GetFlag(FLAGS_insecure);
  options.bind = absl::GetFlag(FLAGS_bind);
  if (options.bind.empty()) options.bind = knows_callers || insecure ? "0.0.0.0" : "127.0.0.1";
  options.only_own_user = !insecure;
  options.port = absl::GetFlag(FLAGS_port);
  options.index = absl::GetFlag(FLAGS_index);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.advertise = absl::GetFlag(FLAGS_advertise);
  options.heartbeat_interval = absl::GetFlag(FLAGS_heartbeat_interval);
  options.lease = absl::GetFlag(FLAGS_lease);
  options.stream_grace = absl::GetFlag(FLAGS_stream_grace);
  options.join_timeout = absl::GetFlag(FLAGS_join_timeout);
  options.abandoned_job_ttl = absl::GetFlag(FLAGS_abandoned_job_ttl);
  options.stall_warning = absl::GetFlag(FLAGS_stall_warning);
  options.max_groups = absl::GetFlag(FLAGS_max_groups);
  options.max_chunks = absl::GetFlag(FLAGS_max_chunks);
  options.max_jobs = absl::GetFlag(FLAGS_max_jobs);
  options.max_workers = absl::GetFlag(FLAGS_max_workers);
  options.closing_threads = absl::GetFlag(FLAGS_closing_threads);
  options.congestion_control = absl::GetFlag(FLAGS_congestion_control);
  options.shared_memory = absl::GetFlag(FLAGS_shared_memory);
  options.unix_socket = absl::GetFlag(FLAGS_unix_socket);
  options.reflection = absl::GetFlag(FLAGS_reflection);
  options.hello_timeout = absl::GetFlag(FLAGS_hello_timeout);
  options.max_connections = absl::GetFlag(FLAGS_max_connections);
  options.max_connections_per_peer = absl::GetFlag(FLAGS_max_connections_per_peer);

  // A coordinator that was only paused still takes its workers back for this long: it drops a
  // worker after `lease` and `stream_grace`, and keeps a job without workers for
  // `abandoned_job_ttl`.
  if (absl::GetFlag(FLAGS_exit_when_done)) {
    options.coordinator_timeout = options.abandoned_job_ttl + options.lease + options.stream_grace;
  }

  options.first_generation = static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now()));
  options.state = absl::GetFlag(FLAGS_state);
  if (options.state.empty()) {
    options.state = DefaultState(options);
  } else if (options.state == "none") {
    options.state.clear();
  }

  const absl::StatusOr<std::string> server_token =
      ReadSecret({"server_token", absl::GetFlag(FLAGS_server_token),
                  absl::GetFlag(FLAGS_server_token_file), std::getenv("SYNCGRADS_SERVER_TOKEN")});
  if (!server_token.ok()) {
    std::cerr << "ps-server: " << server_token.status().message() << std::endl;
    return 1;
  }
  options.server_token = *server_token;

  QueuedJournalOptions log;
  log.name = absl::StrCat("ps-server ", options.index);
  log.level = absl::GetFlag(FLAGS_log_level);
  log.max_lines = absl::GetFlag(FLAGS_log_lines);
  QueuedJournal journal(STDERR_FILENO, log);
  // gRPC writes its log on its own threads, which must not block on stderr either.
  const GrpcLog grpc_log([&journal](const std::string& line) { journal.Warn("gRPC: " + line); });
  const absl::StatusOr<std::optional<HostPort>> metrics_address = MetricsAddress();
  if (!metrics_address.ok()) {
    journal.Warn(metrics_address.status().ToString());
    return 1;
  }
  // Server::Start describes a malformed address.
  const absl::StatusOr<HostPort> bind = ParseHostAndPort("--bind", options.bind, 0);
  if (!knows_callers && !insecure && bind.ok() && bind->port == 0) {
    std::vector<std::pair<absl::string_view, std::string>> hosts = {{"--bind", bind->host}};
    if (metrics_address->has_value()) hosts.emplace_back("--metrics", (*metrics_address)->host);
    for (const auto& [flag, host] : hosts) {
      if (IsLoopback(host)) continue;
      journal.Warn(absl::StrCat(
          "INVALID_ARGUMENT: ", flag, " is ", host,
          ", which other hosts may reach, but this server "
          "knows nobody: set --tls_client_ca or --tokens_file (docs/security.md), or --insecure to "
          "let everybody in"));
      return 1;
    }
  }
  if (!knows_callers && IsLoopback(options.bind)) {
    journal.Debug("only this host is served: peers need no certificate and no token");
  } else if (knows_callers && !options.tls.certificate.empty()) {
    journal.Note(SecurityOf(options));
  } else {
    journal.Warn(SecurityOf(options));
  }
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, journal);
  if (!server.ok()) {
    journal.Warn(server.status().ToString());
    return ExitCodeOfStart(server.status());
  }
  // The server has started, so --bind is a host.
  const HostPort address = {bind->host, (*server)->port()};
  std::cout << "ps-server " << options.index << " listening on " << ToString(address) << std::endl;
  std::unique_ptr<HttpServer> metrics;
  if (metrics_address->has_value()) {
    const auto status = [&server](v1::GetStatusReply& reply) { (*server)->FillStatus(reply); };
    const auto readiness = [&server](v1::GetStatusReply& reply) {
      (*server)->FillReadiness(reply);
    };
    const auto curves = [&server](v1::Curves& curves) { (*server)->FillCurves(curves); };
    const auto events = [&server](v1::EventsReply& events) { (*server)->FillEvents(events); };
    auto started = HttpServer::Start(
        **metrics_address, StatusPages(status, readiness, curves, events),
        {.pages = StatusEvents(status)}, PagesSecurity(options, **server, journal));
    if (!started.ok()) {
      journal.Warn(started.status().ToString());
      return ExitCodeOfStart(started.status());
    }
    metrics = *std::move(started);
    std::cout << "ps-server " << options.index << " serves metrics on http"
              << (options.tls.certificate.empty() ? "://" : "s://") << ToString(metrics->address())
              << "/metrics" << std::endl;
  }

  NotifyServiceManager("READY=1");
  // Whatever does not answer may hang at the end too.
  const Watchdog watchdog(
      {.address = address},
      [&server] {
        NotifyServiceManager("WATCHDOG=1");
        (*server)->ReportReadiness();
      },
      [&journal](const std::string& silence) {
        journal.Warn(silence + "; exiting");
        journal.Flush();
        std::_Exit(130);
      });

  const bool exit_when_done = absl::GetFlag(FLAGS_exit_when_done);
  while (!StopRequestedWithin(signals, absl::Milliseconds(100))) {
    if (exit_when_done && (*server)->all_jobs_done()) {
      journal.Note("the last job has ended; exiting");
      return 0;
    }
    if (const absl::Status status = (*server)->status(); !status.ok()) {
      journal.Warn(status.ToString());
      return ExitCodeOfEnd(status);
    }
  }
  NotifyServiceManager("STOPPING=1");
  const absl::Duration timeout = absl::GetFlag(FLAGS_drain_timeout);
  (*server)->Drain();
  if ((*server)->has_open_jobs()) {
    journal.Note("draining: no new jobs; open jobs may continue for " +
                 absl::FormatDuration(timeout));
  }
  const absl::Time deadline = MonotonicNow() + timeout;
  while ((*server)->has_open_jobs() && MonotonicNow() < deadline) {
    // A second signal ends the drain at once.
    if (StopRequestedWithin(signals, absl::Milliseconds(50))) break;
  }
  journal.Note("stopping");
  return static_cast<int>(stopped_exit_code);
}

}  // namespace
}  // namespace syncgrads::server

int main(int argc, char** argv) {
  const sigset_t signals = syncgrads::server::BlockStopSignals();
  syncgrads::SetUpProcess();
  syncgrads::RaiseDescriptorLimit();
  syncgrads::AnswerVersionAndHelp("ps-server");
  absl::SetProgramUsageMessage(
      "A gradient-sync server of syncgrads.\n"
      "\n"
      "Exit codes:\n"
      "  0    stopped by a signal; with --exit_when_done: all jobs are done\n"
      "  1    a flag is invalid, or other users may change the state directory\n"
      "  2    the coordinator has rejected this server\n"
      "  3    another server uses the same state directory\n"
      "  4    with --exit_when_done: the coordinator has been unreachable for longer than any\n"
      "       worker waits\n"
      "  128  at start: the address, or that of --metrics, cannot be listened on (for example, "
      "the\n"
      "       port is in use), or the state directory cannot be read or written\n"
      "  129  there is no space for the state, or, later, the end of a job could not be stored\n"
      "  130  its own port has not answered for a minute");
  const absl::Status names = syncgrads::CheckRenamedFlags(absl::MakeConstSpan(argv, argc),
                                                          syncgrads::server::kRenamedFlags);
  if (!names.ok()) {
    std::cerr << "ps-server: " << names.message() << std::endl;
    return 1;
  }
  if (absl::ParseCommandLine(argc, argv).size() > 1) {
    std::cerr << "ps-server accepts only flags; see --help" << std::endl;
    return 1;
  }
  syncgrads::SetPollers(absl::GetFlag(FLAGS_pollers));
  return syncgrads::server::Main(signals);
}
