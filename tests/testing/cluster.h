// Servers of one job pool in this process, on ports that the system picks.

#ifndef SYNCGRADS_TESTS_TESTING_CLUSTER_H_
#define SYNCGRADS_TESTS_TESTING_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "server/server.h"

namespace syncgrads::testing {

// Keeps what servers say, and waits for it.
class RecordingJournal : public server::Journal {
 public:
  void Note(const std::string& line) override;
  void Warn(const std::string& line) override;

  // Waits until a line that has all of `parts` in it has been written, and
  // returns it; empty after `timeout`.
  std::string WaitForLine(const std::vector<std::string>& parts, absl::Duration timeout);
  // Every line so far.
  std::string Text() const;

 private:
  mutable Mutex mutex_;
  CondVar added_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class Cluster {
 public:
  // Starts `servers` of them, with `options` but for index, ports, and
  // addresses. Aborts the test program if one cannot start.
  explicit Cluster(uint32_t servers = 1, server::ServerOptions options = {});

  // host:port of server 0.
  const std::string& coordinator() const { return coordinator_; }
  server::Server& server(uint32_t index) { return *servers_[index]; }
  RecordingJournal& journal() { return journal_; }

 private:
  RecordingJournal journal_;
  std::string coordinator_;
  std::vector<std::unique_ptr<server::Server>> servers_;
};

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_CLUSTER_H_
