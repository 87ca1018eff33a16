#include "worker/launch/launch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/polling.h"

namespace syncgrads {
namespace {

constexpr absl::string_view kLoopback = "127.0.0.1";

// The limit for all servers of a group together. More restarts mean a permanent fault.
constexpr int kMaxRestarts = 20;

int BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
}

}  // namespace

Launch::Launch(LaunchPlan plan, Console& console)
    : plan_(std::move(plan)), console_(console), tally_(plan_.workers, plan_.on_worker_death) {}

int Launch::Run() {
  const int signals = BlockSignals();
  deadline_ = MonotonicNow() + plan_.start_timeout;
  if (plan_.log_level <= LogLevel::kInfo) {
    const auto count = [](int n, absl::string_view what) {
      return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
    };
    Print(absl::StrCat(count(plan_.servers, "server"), " and ", count(plan_.workers, "worker"),
                       " start"));
  }
  StartServer(0);
  while (AnyRunning()) {
    PollOnce(signals);
    TakeSignals(signals);
    ReapPrograms();
    StartWhatCanBeStarted();
    KeepDeadline();
  }
  close(signals);
  return exit_code_.value_or(tally_.exit_code());
}

void Launch::StartServer(int index) {
  ChildOptions options = {.role = Role::kServer, .rank = index, .program = plan_.server_program};
  options.args = {absl::StrCat("--index=", index), "--port=0", absl::StrCat("--bind=", kLoopback),
                  "--exit_when_done"};
  if (index == 0) {
    options.args.push_back(absl::StrCat("--servers=", plan_.servers));
  } else {
    options.args.push_back(absl::StrCat("--coordinator=", coordinator_));
  }
  if (!plan_.state.empty()) {
    options.args.insert(options.args.begin(),
                        absl::StrCat("--state=", plan_.state, "/server-", index));
  }
  AddUserFlags(plan_.server_args, options);
  Start(std::move(options));
}

void Launch::StartWorker(int rank, bool again) {
  ChildOptions options = {.role = Role::kWorker, .rank = rank, .program = plan_.worker_program};
  options.args = {absl::StrCat("--job=", plan_.job_path), absl::StrCat("--server=", coordinator_),
                  absl::StrCat("--rank=", rank), absl::StrCat("--world_size=", plan_.workers)};
  if (plan_.on_worker_death == OnWorkerDeath::kRestart) {
    // The name under which the worker rejoins after a restart.
    options.args.push_back(absl::StrCat("--name=worker-", rank));
  }
  if (again) options.args.push_back("--only_running");
  AddUserFlags(plan_.worker_args, options);
  // Worker 0 draws the progress bar. The console shows it after the prefix.
  constexpr size_t prefix_columns = sizeof("[worker 0] ");
  if (rank == 0 && console_.columns() > 4 * prefix_columns) {
    options.terminal_columns = console_.columns() - prefix_columns;
  }
  Start(std::move(options));
}

void Launch::AddUserFlags(const std::vector<std::string>& further, ChildOptions& options) const {
  if (plan_.log_level != LogLevel::kInfo) {
    options.args.push_back(absl::StrCat("--log_level=", ToString(plan_.log_level)));
  }
  options.args.insert(options.args.end(), further.begin(), further.end());
}

void Launch::Start(ChildOptions options) {
  const absl::string_view role = options.role == Role::kServer ? "server " : "worker ";
  absl::StatusOr<Child> child = Child::Start(options);
  if (!child.ok()) return FailToStart(child.status().message());
  programs_.push_back(
      {*std::move(child), absl::StrCat("[", role, options.rank, "] "), Lines(), Lines()});
}

void Launch::PollOnce(int signals) {
  std::vector<pollfd> ready = {{.fd = signals, .events = POLLIN, .revents = 0}};
  for (const Program& program : programs_) {
    for (int fd : {program.child.out(), program.child.err()}) {
      if (fd >= 0) ready.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    }
  }
  poll(ready.data(), ready.size(), PollTimeout(deadline_));
  for (Program& program : programs_) {
    ReadOutput(program, Console::Stream::kOut);
    ReadOutput(program, Console::Stream::kErr);
  }
}

void Launch::ReadOutput(Program& program, Console::Stream stream) {
  const bool is_out = stream == Console::Stream::kOut;
  Lines& lines = is_out ? program.out : program.err;
  const int fd = is_out ? program.child.out() : program.child.err();
  char buffer[4096];
  while (fd >= 0) {
    const ssize_t length = read(fd, buffer, sizeof(buffer));
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (length <= 0) {  // a pseudo-terminal ends with EIO
      program.child.CloseOutput(fd);
      if (std::optional<std::string> rest = lines.Rest()) PrintLine(program, stream, *rest);
      break;
    }
    for (const std::string& line : lines.Add({buffer, static_cast<size_t>(length)})) {
      PrintLine(program, stream, line);
    }
  }
  if (is_out && program.child.role() == Role::kWorker && program.child.rank() == 0) {
    console_.SetStatus(program.prefix, lines.Redrawn());
  }
}

void Launch::PrintLine(Program& program, Console::Stream stream, absl::string_view line) {
  if (program.child.role() == Role::kServer) TakeListeningLine(program, line);
  console_.PrintLine(stream, program.prefix, line);
}

void Launch::TakeListeningLine(Program& program, absl::string_view line) {
  const std::string announcement =
      absl::StrCat("ps-server ", program.child.rank(), " listening on ");
  if (program.listening || !absl::StartsWith(line, announcement)) return;
  program.listening = true;
  if (program.child.rank() != 0) return;
  const size_t colon = line.rfind(':');
  coordinator_ = absl::StrCat(kLoopback, line.substr(std::min(colon, line.size())));
}

void Launch::TakeSignals(int signals) {
  signalfd_siginfo info;
  while (read(signals, &info, sizeof(info)) == sizeof(info)) {
    const int signal = info.ssi_signo;
    if (signal == SIGCHLD) continue;
    exit_code_ = 128 + signal;
    if (phase_ == Phase::kTerminating) {
      KillAll();
    } else if (phase_ != Phase::kKilling) {
      Print(absl::StrCat("signal ", signal, " (", strsignal(signal),
                         ") received: forwarded to all servers and workers"));
      Terminate(signal);
    }
  }
}

void Launch::ReapPrograms() {
  for (Program& program : programs_) {
    if (!program.child.running()) continue;
    const std::optional<End>& end = program.child.Reap();
    if (end.has_value()) TakeEnd(program, *end);
  }
}

void Launch::TakeEnd(Program& program, const End& end) {
  for (Console::Stream stream : {Console::Stream::kOut, Console::Stream::kErr}) {
    ReadOutput(program, stream);
    // A child of the program may still have the pipe open; Launch does not wait for it.
    Lines& lines = stream == Console::Stream::kOut ? program.out : program.err;
    if (std::optional<std::string> rest = lines.Rest()) PrintLine(program, stream, *rest);
  }
  program.child.CloseOutput(program.child.out());
  program.child.CloseOutput(program.child.err());
  if (phase_ == Phase::kTerminating || phase_ == Phase::kKilling) return;

  if (end.role == Role::kServer && !program.listening) {
    return FailToStart(absl::StrCat(Describe(end), " before it was listening"));
  }
  if (CanRestart(program, end)) {
    ++server_restarts_;
    dead_servers_.push_back(end.rank);
    return Print(absl::StrCat(Describe(end), "; restarting it"));
  }
  if (tally_.Restarts(end)) {
    Print(absl::StrCat(Describe(end), "; restarting it"));
    restarts_.push_back(end.rank);
    return;
  }
  tally_.Add(end);
  switch (tally_.verdict()) {
    case Tally::Verdict::kRunning:
      if (end.code != 0) Print(absl::StrCat(Describe(end), "; the others continue"));
      break;
    case Tally::Verdict::kSucceeded:
      if (end.code != 0) Print(absl::StrCat(Describe(end), "; the others have finished"));
      // Ends the servers that have not yet noticed that the job is over.
      Terminate(SIGTERM);
      break;
    case Tally::Verdict::kFailed:
      Print(absl::StrCat(Describe(end), "; stopping all servers and workers"));
      Terminate(SIGTERM);
      break;
  }
}

bool Launch::CanRestart(const Program& program, const End& end) const {
  return end.role == Role::kServer && plan_.restart_servers && phase_ == Phase::kRunning &&
         program.listening && server_restarts_ < kMaxRestarts &&
         (end.signal.has_value() || end.code >= 128);
}

void Launch::StartWhatCanBeStarted() {
  for (const int rank : std::exchange(restarts_, {})) {
    if (phase_ == Phase::kRunning) StartWorker(rank, /*again=*/true);
  }
  if (phase_ == Phase::kRunning) {
    for (int index : std::exchange(dead_servers_, {})) StartServer(index);
  }
  if (phase_ != Phase::kStarting || coordinator_.empty()) return;
  while (phase_ == Phase::kStarting && ServersStarted() < plan_.servers) {
    StartServer(ServersStarted());
  }
  if (phase_ != Phase::kStarting || !AllServersListen()) return;
  phase_ = Phase::kRunning;
  deadline_ = absl::InfiniteFuture();
  for (int rank = 0; rank < plan_.workers && phase_ == Phase::kRunning; ++rank) {
    StartWorker(rank, /*again=*/false);
  }
}

void Launch::KeepDeadline() {
  if (MonotonicNow() < deadline_) return;
  switch (phase_) {
    case Phase::kStarting:
      return FailToStart(absl::StrCat("not all servers are listening after ",
                                      absl::FormatDuration(plan_.start_timeout)));
    case Phase::kTerminating:
      Print(absl::StrCat("killing the programs that are still running after ",
                         absl::FormatDuration(plan_.grace)));
      return KillAll();
    case Phase::kRunning:
    case Phase::kKilling:
      return;
  }
}

void Launch::Terminate(int signal) {
  phase_ = Phase::kTerminating;
  deadline_ = MonotonicNow() + plan_.grace;
  for (Program& program : programs_) program.child.Kill(signal);
}

void Launch::KillAll() {
  phase_ = Phase::kKilling;
  deadline_ = absl::InfiniteFuture();
  for (Program& program : programs_) program.child.Kill(SIGKILL);
}

void Launch::FailToStart(absl::string_view problem) {
  Print(problem);
  exit_code_ = 1;
  Terminate(SIGTERM);
}

bool Launch::AnyRunning() const {
  return std::any_of(programs_.begin(), programs_.end(),
                     [](const Program& program) { return program.child.running(); });
}

int Launch::ServersStarted() const {
  return std::count_if(programs_.begin(), programs_.end(), [](const Program& program) {
    return program.child.role() == Role::kServer;
  });
}

bool Launch::AllServersListen() const {
  return std::all_of(programs_.begin(), programs_.end(), [](const Program& program) {
    return program.child.role() != Role::kServer || program.listening;
  });
}

void Launch::Print(absl::string_view text) {
  console_.PrintLine(Console::Stream::kErr, "[launch] ", text);
}

}  // namespace syncgrads
