// Runs the servers and workers of one job on this machine, as one group.

#ifndef SYNCGRADS_WORKER_LAUNCH_LAUNCH_H_
#define SYNCGRADS_WORKER_LAUNCH_LAUNCH_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/log_level.h"
#include "worker/launch/child.h"
#include "worker/launch/console.h"
#include "worker/launch/lines.h"
#include "worker/launch/tally.h"

namespace syncgrads {

// What Launch starts, and what it does when a program ends.
struct LaunchPlan {
  std::string server_program;
  std::string worker_program;
  std::string job_path;
  int servers = 1;
  int workers = 1;
  // Every server and worker is started with this level, unless it is the default.
  LogLevel log_level = LogLevel::kInfo;
  // Additional flags for every server or worker.
  std::vector<std::string> server_args;
  std::vector<std::string> worker_args;
  OnWorkerDeath on_worker_death = OnWorkerDeath::kContinue;
  // What happens when a server is killed or exits with a retryable code (128 to 255).
  // True: it is restarted, up to 20 times for all servers together. False: the group
  // ends. A server that ends before it listens ends the group in any case.
  bool restart_servers = true;
  // The directory in which each server gets a folder for its state. Empty: Launch passes
  // no --state; server_args or the server's default decides.
  std::string state;
  // How long programs may take to end after a signal before they are killed.
  absl::Duration grace = absl::Seconds(15);
  // How long servers may take until all of them listen.
  absl::Duration start_timeout = absl::Seconds(60);
};

// A group of programs from start to end.
//
//   starting ──all servers listen──▶ running
//      │                                │ failure, signal, or
//      │ failure or signal              │ the last worker has ended
//      └───────────────▶ terminating ◀──┘
//                             │ grace over, or a second signal
//                             ▼
//                          killing
//
// Launch starts server 0 first, on a port that the server picks and prints; then the
// other servers; then the workers. No program outlives this object, nor the process.
//
// Not thread-safe. Run blocks SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGCHLD in the calling
// thread, which should be the only one, and receives them itself; they stay blocked
// afterwards.
class Launch {
 public:
  Launch(LaunchPlan plan, Console& console);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Starts the group and returns the process's exit code when no program is left. After
  // signal N the code is 128 + N.
  int Run();

 private:
  enum class Phase { kStarting, kRunning, kTerminating, kKilling };

  struct Program {
    Child child;
    std::string prefix;
    Lines out;
    Lines err;
    // Servers only: the server has printed the address that it listens on.
    bool listening = false;
  };

  void StartServer(int index);
  // `again`: the worker replaces one that has died.
  void StartWorker(int rank, bool again);
  void Start(ChildOptions options);
  // Appends the flags that a user has given: the log level, and `further`.
  void AddUserFlags(const std::vector<std::string>& further, ChildOptions& options) const;

  // Waits until a program has output, a signal arrives, or the phase's deadline passes.
  void PollOnce(int signals);
  // Reads all that is available now from one stream of one program.
  void ReadOutput(Program& program, Console::Stream stream);
  void PrintLine(Program& program, Console::Stream stream, absl::string_view line);
  // Reads the server's address from `line`, if it is the line that announces it.
  void TakeListeningLine(Program& program, absl::string_view line);
  void TakeSignals(int signals);
  // Looks for programs that have ended.
  void ReapPrograms();
  // Decides what the end of one program means: restart it, continue, or end the group.
  void TakeEnd(Program& program, const End& end);

  // Whether a server that ended in this way is restarted.
  bool CanRestart(const Program& program, const End& end) const;
  // Starts the programs that the phase allows: other servers, workers, restarts.
  void StartWhatCanBeStarted();
  // Ends the phase if its deadline has passed.
  void KeepDeadline();
  // Sends `signal` to all running programs; after the grace period they are killed.
  void Terminate(int signal);
  void KillAll();
  void FailToStart(absl::string_view problem);

  bool AnyRunning() const;
  int ServersStarted() const;
  bool AllServersListen() const;
  // Prints a line of ps-launch itself.
  void Print(absl::string_view text);

  const LaunchPlan plan_;
  Console& console_;
  std::vector<Program> programs_;
  Tally tally_;
  Phase phase_ = Phase::kStarting;
  // Ranks of the workers that have died and will be restarted.
  std::vector<int> restarts_;
  // The latest time at which the phase ends.
  absl::Time deadline_ = absl::InfiniteFuture();
  // Indices of the servers that have died and will be restarted.
  std::vector<int> dead_servers_;
  // How often servers have been restarted, all together.
  int server_restarts_ = 0;
  // host:port of server 0; empty until the server has printed it.
  std::string coordinator_;
  // Set by a signal or a failed start: the exit code, whatever the tally's is.
  std::optional<int> exit_code_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_LAUNCH_H_
