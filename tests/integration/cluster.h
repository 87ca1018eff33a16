// Real ps-server and ps-worker processes of one test.

#ifndef SYNCGRADS_TESTS_INTEGRATION_CLUSTER_H_
#define SYNCGRADS_TESTS_INTEGRATION_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "tests/testing/process/process.h"

namespace syncgrads::testing {

// Of every wait for a process. Instrumented programs on a busy machine are slow.
inline constexpr absl::Duration kLongEnough = absl::Minutes(3);

// Running ps-servers on ports that they picked, each with its state in a directory
// of the cluster's own.
class Cluster {
 public:
  // Starts them and waits until all listen; a test failure if they do not.
  // `flags` go to every server.
  explicit Cluster(int servers, const std::vector<std::string>& flags = {});
  // Ends the servers, and removes their state.
  ~Cluster();

  Process& server(int index) { return *servers_.at(index); }
  // host:port of server 0.
  const std::string& coordinator() const { return addresses_.at(0); }
  const std::string& address(int index) const { return addresses_.at(index); }
  const std::string& state(int index) const { return states_.at(index); }

  // Starts a server that has ended again, with the same arguments. It listens where
  // it did; a test failure if it does not.
  void Restart(int index);

  // Starts a ps-worker of the job in the file `job`.
  std::unique_ptr<Process> StartWorker(const std::string& job, int rank, int world_size,
                                       const std::vector<std::string>& flags = {}) const;

 private:
  // Returns the address that the server listens on.
  std::string StartServer(int index);

  std::vector<std::unique_ptr<Process>> servers_;
  std::vector<std::vector<std::string>> flags_;
  std::vector<std::string> states_;
  std::vector<std::string> addresses_;
};

// Runs all workers of a job to their ends, which have to be exit code 0, and
// returns what each wrote with --output.
std::vector<std::string> TrainOn(const Cluster& cluster, const std::string& job, int workers,
                                 const std::vector<std::string>& flags = {});

// As Process::Wait; a test failure, with the output, if it still runs then.
Exit WaitFor(Process& process);

// A file name in the test's own folder.
std::string TemporaryPath(const std::string& name);
std::string ReadFileOrDie(const std::string& path);
// Writes the file TemporaryPath(name) and returns its path.
std::string WriteTemporaryFile(const std::string& name, const std::string& contents);

// The Iris example's job, changed by `change`, as a file of the test's own. Paths
// in it have become absolute.
std::string WriteIrisJob(
    const std::string& name, const std::function<void(v1::JobFile&)>& change = [](v1::JobFile&) {});

// A job with generated data that takes so many steps.
std::string WriteLongJob(const std::string& name, uint64_t steps);

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_INTEGRATION_CLUSTER_H_
