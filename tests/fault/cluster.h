// The servers and workers of one run: real processes that are started, killed and restarted.

#ifndef SYNCGRADS_TESTS_FAULT_CLUSTER_H_
#define SYNCGRADS_TESTS_FAULT_CLUSTER_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/network.h"
#include "tests/fault/schedule.h"
#include "tests/testing/process/process.h"
#include "tests/testing/reserved_port.h"

namespace syncgrads::fault {

struct Programs {
  std::string server = "server/ps-server";
  std::string worker = "worker/ps-worker";
  std::string visitor = "tests/fault/visitor";
};

// One process from its start to its end.
struct Life {
  std::unique_ptr<testing::Process> process;
  // Workers only: the path of the event log.
  std::string events;
  std::string output;  // the path prefix of a worker's files, without rank and extension
  bool told_to_stop = false;
  // Workers only: SIGTERM was sent because no server was left.
  bool found_no_servers = false;
  std::optional<testing::Exit> exit;
};

// The size of the file system that holds a server's state, in schedules that fill it.
inline constexpr uint64_t kSmallStateBytes = 64 << 20;
// Gives this process, and the processes that it starts, a mount namespace of their own. Mounts in
// it end with these processes. Must be called before threads are started. Returns false if this
// process may not mount a tmpfs.
bool CanMount();

// A client that uses a job of its own; see visitor_main.cc.
struct Visit {
  std::unique_ptr<Life> life;
  bool may_be_refused = false;
};

// Not thread-safe; used by the thread that runs the schedule.
class Cluster {
 public:
  // `directory` is for the files of the processes. All arguments must outlive the cluster.
  Cluster(const Schedule& schedule, const Programs& programs, const std::string& directory,
          FaultyNetwork& network);
  ~Cluster();

  // Starts the servers, waits until all of them listen, and then starts the workers.
  absl::Status Start(absl::Time deadline);
  const std::string& job() const { return job_; }

  // Returns the newest life of a process.
  Life& life(ProcessId process) { return *Lives(process).back(); }
  const std::vector<std::unique_ptr<Life>>& lives(ProcessId process) { return Lives(process); }

  // Starts a new life of a process that has ended.
  absl::Status Restart(ProcessId process);
  // Returns whether a restarted server listens. If it has ended, returns Unavailable with its
  // output.
  absl::StatusOr<bool> Listens(int server);
  // Sends a signal to the newest life. Does nothing if it has ended.
  void Signal(ProcessId process, int signal);
  // Kills the newest life and waits until it has ended.
  absl::Status Kill(ProcessId process);
  // Returns whether the newest life has ended, and records its exit status.
  bool HasEnded(ProcessId process);

  // FillState: fills the file system of the server's state with a file. FreeState: removes this
  // file.
  absl::Status FillState(int server);
  void FreeState(int server);
  // TakeDescriptors: limits the server to the file descriptors that it has open and a few more, and
  // opens many connections to it. GiveDescriptorsBack: undoes both.
  absl::Status TakeDescriptors(int server);
  void GiveDescriptorsBack(int server);
  // BlockLog: fills the pipe that the server logs to and stops reading it. UnblockLog: reads it
  // again.
  absl::Status BlockLog(int server);
  void UnblockLog(int server);

  // Starts a client with a job of its own.
  absl::Status StartVisit(const Fault& fault);
  const std::vector<Visit>& visits() const { return visits_; }
  bool VisitsHaveEnded();

  // Writes the output of each process to a file.
  void WriteOutputs() const;

 private:
  std::vector<std::unique_ptr<Life>>& Lives(ProcessId process);
  std::vector<std::string> ServerFlags(int server) const;
  std::string StateOf(int server) const;
  std::string FillerOf(int server) const;
  absl::Status MountStates() const;
  bool HasEnded(Life& life);
  absl::Status StartServer(int server);
  absl::Status StartWorker(int worker);

  const Schedule& schedule_;
  const Programs& programs_;
  const std::string& directory_;
  FaultyNetwork& network_;
  std::string job_;
  std::array<uint16_t, kServers> ports_ = {};
  // For each server that was killed and does not listen again: its port.
  std::map<int, testing::ReservedPort> reserved_;
  std::array<std::vector<std::unique_ptr<Life>>, kServers> servers_;
  std::array<std::vector<std::unique_ptr<Life>>, kWorkers> workers_;
  std::vector<Visit> visits_;
  // For each server: the connections that use up its file descriptors.
  std::map<int, std::vector<int>> flood_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_CLUSTER_H_
