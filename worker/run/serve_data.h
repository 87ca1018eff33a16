// The flag --serve_data of ps-worker.

#ifndef SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
#define SYNCGRADS_WORKER_RUN_SERVE_DATA_H_

#include <memory>
#include <ostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data_service/data_server.h"
#include "worker/run/stop_signal.h"

namespace syncgrads {

// Starts to serve the job's data. Prints the port to `out`, which matters if that of the options is
// 0: any free port. Errors: those of DataServer::Start.
absl::StatusOr<std::unique_ptr<DataServer>> StartServing(DataServer::Options options,
                                                         std::ostream& out);

// Serves the job's data until a signal stops it. Errors: those of StartServing.
absl::Status ServeData(DataServer::Options options, StopSignal& stop, std::ostream& out);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
