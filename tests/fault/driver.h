// Applies the faults of a schedule to the processes of a run, and watches the processes until they
// end.

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

// Not thread-safe; used by the thread that runs the schedule.
class Driver {
 public:
  // All arguments must outlive the driver.
  Driver(const Schedule& schedule, Cluster& cluster, FaultyNetwork& network);

  // Returns when all processes have ended and none has to be restarted.
  //
  // Errors:
  //   DeadlineExceeded  processes still run after `deadline`; the message names them
  //   Unavailable       a server ended that had not been killed, or does not listen after a restart
  absl::Status RunToEnd(absl::Time deadline);

  // True if there was a moment at which no worker is known to have had the job's state: each worker
  // was dead, had received SIGTERM, or may have been unreachable for too long.
  bool state_may_be_lost() const { return state_may_be_lost_; }
  // True if a server was away for so long that workers may have given it up, or if the machine was
  // so busy that this driver did not run for half of a lease or grace. The time is the drawn time
  // plus the delay that a busy machine adds.
  bool leases_may_have_ended() const { return leases_may_have_ended_; }
  // RunReport::outages. Empty unless the schedule has only kills of servers, without proxies and
  // relays.
  const std::vector<absl::Duration>& outages() const { return outages_; }

 private:
  // The state of one fault.
  struct Progress {
    absl::Time due = absl::InfiniteFuture();  // set when the fault's step has been made
    bool begun = false;
  };
  // An outage: from the kill of servers until training continues.
  struct Outage {
    std::set<int> servers;  // servers that do not listen yet
    absl::Time listened;    // when all of them listened again
    uint64_t step;          // the newest step at that time
  };

  // Reads the new lines of the workers' event logs.
  void ReadLogs();
  absl::Status BeginDueFaults();
  absl::Status Begin(const Fault& fault);
  absl::Status Kill(const Fault& fault);
  absl::Status Terminate(const Fault& fault);
  // Frees the server's state if a client has visited it in the meantime, or if the job is about to
  // end. Otherwise tries again later.
  absl::Status FreeStateOnceVisited(int server);
  void At(absl::Time time, std::function<absl::Status()> action);
  absl::Status RunDueActions();
  absl::Status WatchServers();
  void NoteStep();
  // Restarts a process that is dead, unless its work is done.
  absl::Status Restart(ProcessId process);
  // Returns true if the process has ended with exit code 0.
  bool HasFinished(ProcessId process);
  bool WorkersAreDone();
  // Returns true if a worker has ended because the job's state was lost.
  bool StateIsLost() const;
  // Returns true if all visits of the schedule have begun and ended.
  bool VisitsAreDone();
  bool ServersAreDone();
  bool AllAreDone();
  void DismissWorkersWithoutServers();
  void StopIdleServers();
  std::string StillRunning();

  const Schedule& schedule_;
  Cluster& cluster_;
  FaultyNetwork& network_;
  const bool measures_outages_;

  std::vector<Progress> progress_;  // one entry for each fault of the schedule
  std::multimap<absl::Time, std::function<absl::Status()>> actions_;
  std::set<ProcessId> away_;  // dead processes that will be restarted
  std::set<int> starting_;    // servers that do not listen yet
  std::array<absl::Time, kServers> killed_at_ = {};
  bool leases_may_have_ended_ = false;
  uint64_t step_ = 0;  // the newest step in any worker's log
  std::optional<absl::Time> servers_done_;
  bool servers_stopped_ = false;  // SIGTERM has been sent to the servers
  bool state_is_full_ = false;    // a fault has filled a server's state

  struct Worker {
    std::optional<LogTail> log;  // of the newest life
    size_t life = 0;
    int faults = 0;      // the number of current faults that can end its membership
    uint64_t stale = 0;  // steps up to this one may have been made before the last of these faults
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
