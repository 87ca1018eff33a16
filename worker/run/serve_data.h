// The mode of ps-worker --serve_data.

#ifndef SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
#define SYNCGRADS_WORKER_RUN_SERVE_DATA_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "worker/job/job_file.h"
#include "worker/run/stop_signal.h"

namespace syncgrads {

// Serves the job's data on `port` until a signal stops it. Prints the port to `out`,
// which matters if `port` is 0: any free port. Errors: those of DataServer::Start.
absl::Status ServeData(const Job& job, uint16_t port, const std::string& token, StopSignal& stop,
                       std::ostream& out);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
