// A process that reads a job's data and serves its rows to workers.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_DATA_SERVER_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_DATA_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/tls/tls_options.h"
#include "worker/job/job_file.h"

namespace syncgrads {

// The server of proto/served_data.proto. Until it ends, a worker's call occupies a thread and
// keeps the data that it has opened in memory. Messages of more than 1 MiB and compressed ones are
// refused.
//
// Thread-safe.
class DataServer {
 public:
  struct Options {
    // The data is read from its source, and data.served_from is ignored.
    Job job;
    // The token that workers must send.
    std::string token;
    // 0 selects a free port.
    uint16_t port = 0;
    // Empty: plain text.
    TlsOptions tls = {};
    // If true, only this host can connect.
    bool loopback_only = false;
    // The maximum number of open calls. A worker has one.
    uint32_t max_calls = 1024;
    // A call is cancelled if its first message has not arrived within this time.
    absl::Duration open_timeout = absl::Seconds(10);
  };

  // Starts to serve. Unavailable if the port is in use.
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
