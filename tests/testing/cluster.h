// Runs all servers of a cluster in this process, on free ports that the system chooses.

#ifndef SYNCGRADS_TESTS_TESTING_CLUSTER_H_
#define SYNCGRADS_TESTS_TESTING_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/server.h"

namespace syncgrads::testing {

// Records the lines that servers log, so that a test can wait for one of them. Thread-safe.
class RecordingJournal : public server::Journal {
 public:
  void Debug(const std::string& line) override;
  void Note(const std::string& line) override;
  void Warn(const std::string& line) override;

  // Blocks until a line that contains all of `parts` has been logged, and returns the first such
  // line. Returns an empty string if there is none within `timeout`.
  std::string WaitForLine(const std::vector<std::string>& parts, absl::Duration timeout);
  // Returns all lines so far, joined by newlines.
  std::string Text() const;

 private:
  mutable Mutex mutex_;
  CondVar added_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class Cluster {
 public:
  // Starts `servers` servers with `options`; bind address, port, index, number of servers and
  // coordinator address are overwritten. `clock` must outlive the cluster. Aborts the test program
  // if a server cannot start.
  explicit Cluster(uint32_t servers = 1, server::ServerOptions options = {},
                   const Clock& clock = Clock::Real());

  // The address of server 0, as host:port.
  const std::string& coordinator() const { return coordinator_; }
  server::Server& server(uint32_t index) { return *servers_[index]; }
  // Ends the server in an orderly way. `server` must not be called for it any more.
  void StopServer(uint32_t index) { servers_[index] = nullptr; }
  RecordingJournal& journal() { return journal_; }

 private:
  RecordingJournal journal_;
  std::string coordinator_;
  std::vector<std::unique_ptr<server::Server>> servers_;
};

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_CLUSTER_H_
