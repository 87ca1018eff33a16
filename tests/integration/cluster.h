// Starts real ps-server and ps-worker processes for an integration test.

#ifndef SYNCGRADS_TESTS_INTEGRATION_CLUSTER_H_
#define SYNCGRADS_TESTS_INTEGRATION_CLUSTER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "tests/testing/process/process.h"
#include "tests/testing/reserved_port.h"

namespace syncgrads::testing {

// The timeout of every wait for a process. Instrumented programs on a busy machine are slow.
inline constexpr absl::Duration kLongEnough = absl::Minutes(3);

// Running ps-servers, each on a port that it picked and with its state in a directory of its own.
// Not thread-safe.
class Cluster {
 public:
  // Starts `servers` servers and waits until all of them listen. A server that does not listen is a
  // test failure. `flags` are passed to every server.
  explicit Cluster(int servers, const std::vector<std::string>& flags = {});
  // Kills the servers and removes their state.
  ~Cluster();

  Process& server(int index) { return *servers_.at(index); }
  // Returns host:port of server 0.
  const std::string& coordinator() const { return addresses_.at(0); }
  const std::string& address(int index) const { return addresses_.at(index); }
  const std::string& state(int index) const { return states_.at(index); }

  // Restarts server `index`, which must have exited, with the same arguments. It must listen on the
  // same address as before; otherwise the test fails. From the first call on, the ports of all
  // servers that have exited are reserved.
  void Restart(int index);

  // Starts a ps-worker with the job file `job`. It logs at level debug: worker 0 prints a line of
  // progress after each twentieth of the steps, however long they take.
  std::unique_ptr<Process> StartWorker(const std::string& job, int rank, int world_size,
                                       const std::vector<std::string>& flags = {}) const;

 private:
  // Starts server `index` and returns the address that it listens on.
  std::string StartServer(int index);

  std::vector<std::unique_ptr<Process>> servers_;
  std::vector<std::vector<std::string>> flags_;
  std::vector<std::string> states_;
  std::vector<std::string> addresses_;
  // For each server that has exited and was not restarted: its port.
  std::map<int, ReservedPort> reserved_;
};

// Runs `workers` workers of a job until they exit, and returns the file that each of them wrote
// with --output, in rank order. Every exit code must be 0.
std::vector<std::string> TrainOn(const Cluster& cluster, const std::string& job, int workers,
                                 const std::vector<std::string>& flags = {});

// Waits until `process` exits and returns its exit. If it still runs after kLongEnough, the test
// fails.
Exit WaitFor(Process& process);

// Returns the path of the file `name` in the test's temporary folder.
std::string TemporaryPath(const std::string& name);
std::string ReadFileOrDie(const std::string& path);
// Writes `contents` to TemporaryPath(name) and returns the path.
std::string WriteTemporaryFile(const std::string& name, const std::string& contents);

// Writes the job file of the Iris example, modified by `change`, to the test's temporary folder and
// returns its path. Paths in the job file are made absolute.
std::string WriteIrisJob(
    const std::string& name, const std::function<void(v1::JobFile&)>& change = [](v1::JobFile&) {});

// Writes a job file with generated data that runs for `steps` steps, and returns its path.
std::string WriteLongJob(const std::string& name, uint64_t steps);

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_INTEGRATION_CLUSTER_H_
