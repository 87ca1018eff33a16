// The servers and workers of one run: real processes, started, killed, and started
// again.

#ifndef SYNCGRADS_TESTS_FAULT_CLUSTER_H_
#define SYNCGRADS_TESTS_FAULT_CLUSTER_H_

#include <array>
#include <cstdint>
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

namespace syncgrads::fault {

struct Programs {
  std::string server = "server/ps-server";
  std::string worker = "worker/ps-worker";
};

// One process, from its start to its end.
struct Life {
  std::unique_ptr<testing::Process> process;
  // A worker's.
  std::string events;
  std::string output;  // without the rank and the extension
  bool told_to_stop = false;
  // A worker that was told so because there were no servers any more.
  bool found_no_servers = false;
  std::optional<testing::Exit> exit;
};

// Not thread-safe.
class Cluster {
 public:
  // `directory` is for the processes' files. All must outlive the cluster.
  Cluster(const Schedule& schedule, const Programs& programs, const std::string& directory,
          FaultyNetwork& network);

  // Starts the servers and waits until all listen, then the workers.
  absl::Status Start(absl::Time deadline);
  const std::string& job() const { return job_; }

  // The newest life of a process.
  Life& life(ProcessId process) { return *Lives(process).back(); }
  const std::vector<std::unique_ptr<Life>>& lives(ProcessId process) { return Lives(process); }

  // Starts a process that has ended again.
  absl::Status Restart(ProcessId process);
  // A restarted server listens; false until then.
  // Unavailable if it has ended before, with its output.
  absl::StatusOr<bool> Listens(int server);
  // Nothing happens if it has ended.
  void Signal(ProcessId process, int signal);
  // Kills the process and waits until it has gone.
  absl::Status Kill(ProcessId process);
  // Notes whether the newest life has ended.
  bool HasEnded(ProcessId process);

  // Writes what all processes have printed to files.
  void WriteOutputs() const;

 private:
  std::vector<std::unique_ptr<Life>>& Lives(ProcessId process);
  std::vector<std::string> ServerFlags(int server) const;
  absl::Status StartServer(int server);
  absl::Status StartWorker(int worker);

  const Schedule& schedule_;
  const Programs& programs_;
  const std::string& directory_;
  FaultyNetwork& network_;
  std::string job_;
  std::array<uint16_t, kServers> ports_ = {};
  std::array<std::vector<std::unique_ptr<Life>>, kServers> servers_;
  std::array<std::vector<std::unique_ptr<Life>>, kWorkers> workers_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_CLUSTER_H_
