// The mode of ps-worker --serve_data.

#ifndef SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
#define SYNCGRADS_WORKER_RUN_SERVE_DATA_H_

#include <ostream>

#include "absl/status/status.h"
#include "worker/data_service/data_server.h"
#include "worker/run/stop_signal.h"

namespace syncgrads {

// Serves the job's data until a signal stops it. Prints the port to `out`, which matters if it
// is 0: any free port. Errors: those of DataServer::Start.
absl::Status ServeData(DataServer::Options options, StopSignal& stop, std::ostream& out);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
