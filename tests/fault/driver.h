// Does to a run's processes what its schedule says, and watches them to their end.

#ifndef SYNCGRADS_TESTS_FAULT_DRIVER_H_
#define SYNCGRADS_TESTS_FAULT_DRIVER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/fault/cluster.h"
#include "tests/fault/log_tail.h"
#include "tests/fault/network.h"
#include "tests/fault/schedule.h"

namespace syncgrads::fault {

// Not thread-safe.
class Driver {
 public:
  // All outlive the driver.
  Driver(const Schedule& schedule, Cluster& cluster, FaultyNetwork& network);

  // Returns when all processes have ended and none is to be started again.
  //
  // Errors:
  //   DeadlineExceeded  names the processes that still run
  //   Unavailable       a server ended that nobody had killed, or does not listen
  absl::Status RunToEnd(absl::Time deadline);

  // There was a moment in which no worker is known to have had the job's state: each
  // was dead, told to stop, or out of reach for longer than it may be.
  bool state_may_be_lost() const { return state_may_be_lost_; }
  // A server was away for so long that workers may have given it up: the drawn time, and
  // what a busy machine has added.
  bool leases_may_have_ended() const { return leases_may_have_ended_; }
  // As RunReport's; only of schedules with nothing but kills of servers.
  const std::vector<absl::Duration>& outages() const { return outages_; }

 private:
  // How it is with a fault.
  struct Progress {
    absl::Time due = absl::InfiniteFuture();  // once its step has been made
    bool begun = false;
  };
  // Servers that were killed, until training goes on.
  struct Outage {
    std::set<int> servers;  // that do not listen yet
    absl::Time listened;    // all of them
    uint64_t step = 0;      // the newest at that time
  };

  // What the workers have logged since.
  void ReadLogs();
  absl::Status BeginDueFaults();
  absl::Status Begin(const Fault& fault);
  absl::Status Kill(const Fault& fault);
  absl::Status Terminate(const Fault& fault);
  void At(absl::Time time, std::function<absl::Status()> action);
  absl::Status RunDueActions();
  absl::Status WatchServers();
  void NoteStep();
  // A process that is dead is started again, unless there is nothing left to do.
  absl::Status Restart(ProcessId process);
  // It was done.
  bool HasFinished(ProcessId process);
  bool WorkersAreDone();
  bool ServersAreDone();
  bool AllAreDone();
  void DismissWorkersWithoutServers();
  void StopServersWithoutJob();
  std::string StillRunning();

  const Schedule& schedule_;
  Cluster& cluster_;
  FaultyNetwork& network_;
  const bool measures_outages_;

  std::vector<Progress> progress_;  // of the schedule's faults
  std::multimap<absl::Time, std::function<absl::Status()>> actions_;
  std::set<ProcessId> away_;  // dead, and to be started again
  std::set<int> starting_;    // servers that do not listen yet
  std::array<absl::Time, kServers> killed_at_ = {};
  bool leases_may_have_ended_ = false;
  uint64_t step_ = 0;  // the newest that a worker has logged
  std::optional<absl::Time> servers_done_;
  bool servers_stopped_ = false;  // by SIGTERM

  struct Worker {
    std::optional<LogTail> log;  // of the newest life
    size_t life = 0;
    int faults = 0;      // under way that can end its membership
    uint64_t stale = 0;  // a step that it may have made before the last of them
    bool has_state = false;
  };
  std::array<Worker, kWorkers> workers_;
  bool anybody_had_state_ = false;
  bool state_may_be_lost_ = false;

  std::optional<Outage> outage_;
  std::vector<absl::Duration> outages_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_DRIVER_H_
