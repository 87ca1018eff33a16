// ps-worker --serve_data.

#ifndef SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
#define SYNCGRADS_WORKER_RUN_SERVE_DATA_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "worker/job/job_file.h"
#include "worker/run/stop_signal.h"

namespace syncgrads {

// Serves the job's data until told to stop; says on `out` where. Errors: as
// DataServer::Start.
absl::Status ServeData(const Job& job, uint16_t port, const std::string& token, StopSignal& stop,
                       std::ostream& out);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_SERVE_DATA_H_
