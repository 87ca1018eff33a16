// The flag --serve_data of ps-worker.

#ifndef SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
#define SYNCGRADS_WORKER_RUN_SERVE_DATA_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data_service/data_server.h"
#include "worker/job/job_file.h"
#include "worker/run/stop_signal.h"

namespace syncgrads {

// Starts to serve the job's data on `port`. Prints the port to `out`, which matters if `port` is 0:
// any free port. Errors: those of DataServer::Start.
absl::StatusOr<std::unique_ptr<DataServer>> StartServing(const Job& job, uint16_t port,
                                                         const std::string& token,
                                                         std::ostream& out);

// Serves the job's data until a signal stops it. Errors: those of StartServing.
absl::Status ServeData(const Job& job, uint16_t port, const std::string& token, StopSignal& stop,
                       std::ostream& out);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
