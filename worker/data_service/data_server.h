// A process that reads a job's data for workers that do not.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_DATA_SERVER_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_DATA_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/job/job_file.h"

namespace syncgrads {

// Serves the rows of proto/served_data.proto. Each worker has a thread, and what it has
// opened in memory, for as long as it is there.
//
// Thread-safe.
class DataServer {
 public:
  struct Options {
    // Its data is read from where it lies, whatever served_from says.
    Job job;
    // What workers have to know.
    std::string token;
    // 0: one that is free.
    uint16_t port = 0;
  };

  // Unavailable if the port is taken.
  static absl::StatusOr<std::unique_ptr<DataServer>> Start(Options options);
  // Ends the calls under way.
  ~DataServer();

  uint16_t port() const;
  // Those of all workers that have been made so far.
  uint64_t batches_made() const;

 private:
  class Service;
  DataServer();

  // Before it: whoever calls into the service has gone.
  std::unique_ptr<Service> service_;
  struct Listening;
  std::unique_ptr<Listening> listening_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVICE_DATA_SERVER_H_
