// A process that reads a job's data and serves its rows to workers.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_DATA_SERVER_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_DATA_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/tls/tls_options.h"
#include "worker/data_service/opening_calls.h"
#include "worker/job/job_file.h"

namespace syncgrads {

// The server of proto/served_data.proto. Until it ends, a worker's call occupies a thread and
// keeps the data that it has opened in memory. Messages of more than 1 MiB and compressed ones are
// refused. A first message is not parsed before its token has been compared. Connections beyond
// ConnectionLimits are closed at once, and guesses of the token are slowed (WrongTokens).
//
// Thread-safe.
class DataServer {
 public:
  struct Options {
    // The data is read from its source, and data.served_from is ignored.
    Job job;
    // The token that workers must send. If it is empty and `tls` has a client CA, a worker's
    // certificate must have the URI syncgrads:worker.
    std::string token;
    // 0 selects a free port.
    uint16_t port = 0;
    // Empty: plain text.
    TlsOptions tls = {};
    // If true, only this host can connect.
    bool loopback_only = false;
    // The maximum number of open calls. A worker has one. A call counts from when its first
    // message, with the token, has arrived.
    uint32_t max_calls = 1024;
    // The limits of calls before that.
    OpeningCalls::Limits opening = {};
    // Logs a line about refused connections and wrong tokens. Called on any thread. Null: nothing
    // is logged.
    std::function<void(const std::string& line)> warn = nullptr;
  };

  // Starts to serve. Unavailable if the port cannot be listened on.
  static absl::StatusOr<std::unique_ptr<DataServer>> Start(Options options);
  // Cancels the calls in progress.
  ~DataServer();

  uint16_t port() const;
  // The number of batches made so far, for all workers.
  uint64_t batches_made() const;

  // Waits until no worker has its rows open. Returns false if meanwhile no batch is made and no
  // worker leaves for `timeout`, or as soon as `should_stop` returns true.
  bool AwaitIdle(absl::Duration timeout, absl::FunctionRef<bool()> should_stop) const;

 private:
  class Service;
  DataServer();

  // Declared before listening_: the gRPC server is destroyed first, so it no longer calls the
  // service.
  std::unique_ptr<Service> service_;
  struct Listening;
  std::unique_ptr<Listening> listening_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVICE_DATA_SERVER_H_
