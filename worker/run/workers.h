// Runs several workers in one process.

#ifndef SYNCGRADS_WORKER_RUN_WORKERS_H_
#define SYNCGRADS_WORKER_RUN_WORKERS_H_

#include <cstdint>
#include <vector>

#include "worker/run/worker.h"

namespace syncgrads {

// Runs `count` (at least 1) workers, each on its own thread. Each is a member of the job,
// like a worker in its own process. For worker i of the process:
//
//   rank       p * count + i if a launcher set the process's number p; --rank + i if the
//              flag is given
//   name       --name with the suffix ".i", if the flag is given
//   event log  the path with ".workeri" before its extension
//
// If `count` is more than 1, the workers share one set of connections to the servers,
// each line of output begins with "[worker i] ", and there is no progress bar.
//
// Returns the outcome of each worker after all have left the job. If one fails, the
// others continue as if a process had failed. ResourceExhausted if the system does not
// start a worker's thread.
std::vector<WorkerOutcome> RunWorkers(const WorkerOptions& options, uint32_t count,
                                      const WorkerDependencies& dependencies);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_WORKERS_H_
