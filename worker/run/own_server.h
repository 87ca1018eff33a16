// A server in the process of its workers (ps-worker --serve).

#ifndef SYNCGRADS_WORKER_RUN_OWN_SERVER_H_
#define SYNCGRADS_WORKER_RUN_OWN_SERVER_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "common/log_level.h"
#include "common/tls/tls_options.h"
#include "server/server.h"
#include "server/service/events/queued_journal.h"
#include "worker/run/stop_signal.h"

namespace syncgrads {

// The only server of its jobs. It keeps no state: it ends with its process. Thread-safe.
class OwnServer {
 public:
  struct Options {
    // 0: a free port.
    uint16_t port = 0;
    // With a client CA, the server is for all hosts, and every peer needs a certificate.
    TlsOptions tls = {};
    // Without a client CA: whether other hosts may connect.
    bool insecure = false;
    LogLevel level = LogLevel::kInfo;
  };

  // Listens, and logs to stderr. Errors: those of Server::Start.
  static absl::StatusOr<std::unique_ptr<OwnServer>> Start(const Options& options);

  uint16_t port() const { return server_->port(); }
  // The address for workers of this process.
  std::string address() const;

  // Returns when no job is open, because workers of other processes may train longer than those of
  // this one; or when `stop` is requested. Writes to `out` which jobs are open, at once and every
  // 30 s. The server closes a job that has been without workers for
  // ServerOptions::abandoned_job_ttl.
  void Finish(const StopSignal& stop, std::ostream& out);

 private:
  explicit OwnServer(LogLevel level);

  // Writes a line for each open job.
  void ReportOpenJobs(std::ostream& out) const;

  server::QueuedJournal journal_;
  std::unique_ptr<server::Server> server_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_OWN_SERVER_H_
