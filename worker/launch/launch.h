// Runs the servers and workers of one job on this machine, as one group.

#ifndef SYNCGRADS_WORKER_LAUNCH_LAUNCH_H_
#define SYNCGRADS_WORKER_LAUNCH_LAUNCH_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/launch/child.h"
#include "worker/launch/console.h"
#include "worker/launch/lines.h"
#include "worker/launch/tally.h"

namespace syncgrads {

struct LaunchPlan {
  std::string server_program;
  std::string worker_program;
  std::string job_path;
  int servers = 1;
  int workers = 1;
  // Added to what every server or worker is started with.
  std::vector<std::string> server_args;
  std::vector<std::string> worker_args;
  OnWorkerDeath on_worker_death = OnWorkerDeath::kContinue;
  // A server that is killed, or whose exit code says that the same could succeed
  // another time, is started again, or ends the group.
  bool restart_servers = true;
  // Under which each server has a folder for its state; empty: they keep none.
  std::string state;
  // From asking a program to end until it is killed.
  absl::Duration grace = absl::Seconds(15);
  // In which all servers must listen.
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
// Server 0 is started on a port that it picks and prints; then the other servers,
// then the workers. No program outlives this object, nor the process.
//
// Not thread-safe. Run takes SIGINT, SIGTERM, SIGHUP and SIGCHLD of the calling
// thread, which should be the only one.
class Launch {
 public:
  Launch(LaunchPlan plan, Console& console);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Returns when no program is left: what the process should exit with. 128 + N
  // after signal N.
  int Run();

 private:
  enum class Phase { kStarting, kRunning, kTerminating, kKilling };

  struct Program {
    Child child;
    std::string prefix;
    Lines out;
    Lines err;
    bool listening = false;  // servers
  };

  void StartServer(int index);
  // `again`: it takes the place of one that has died.
  void StartWorker(int rank, bool again);
  void Start(ChildOptions options);

  void PollOnce(int signals);
  // Of one stream of one program, all that is there now.
  void ReadOutput(Program& program, Console::Stream stream);
  void PrintLine(Program& program, Console::Stream stream, absl::string_view line);
  void TakeListeningLine(Program& program, absl::string_view line);
  void TakeSignals(int signals);
  void ReapPrograms();
  void TakeEnd(Program& program, const End& end);

  // Whether a server that has ended so is to be started again.
  bool CanRestart(const Program& program, const End& end) const;
  void StartWhatCanBeStarted();
  void KeepDeadline();
  // Sends `signal` to all that run, and kills them after the grace.
  void Terminate(int signal);
  void KillAll();
  void FailToStart(absl::string_view problem);

  bool AnyRunning() const;
  int ServersStarted() const;
  bool AllServersListen() const;
  // A line of our own.
  void Say(absl::string_view text);

  const LaunchPlan plan_;
  Console& console_;
  std::vector<Program> programs_;
  Tally tally_;
  Phase phase_ = Phase::kStarting;
  // Workers that have died and are to be started again.
  std::vector<int> restarts_;
  // When the phase ends, whatever happens.
  absl::Time deadline_ = absl::InfiniteFuture();
  // Servers that have died and are to be started again, and how many were.
  std::vector<int> dead_servers_;
  int server_restarts_ = 0;
  // host:port of server 0, once it has said so.
  std::string coordinator_;
  // Set by a signal or a failed start: what to exit with whatever the tally says.
  std::optional<int> exit_code_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_LAUNCH_H_
