// Several workers in one process.

#ifndef SYNCGRADS_WORKER_RUN_WORKERS_H_
#define SYNCGRADS_WORKER_RUN_WORKERS_H_

#include <cstdint>
#include <vector>

#include "worker/run/worker.h"

namespace syncgrads {

// Runs `count` (at least 1) workers, each in a thread of its own and each a member of the
// job as one in a process of its own is: worker i of a process that its launcher calls
// number p has rank p * count + i, by flags --rank + i; --name, if there is one, with
// ".i"; the event log with ".workeri" before its extension. With more than one, they share
// one set of connections to the servers, what they print is in whole lines that begin with
// "[worker i] ", and there is no progress bar.
//
// Returns what became of each when all have left the job; one that fails is to the
// others what a process that failed is.
std::vector<WorkerOutcome> RunWorkers(const WorkerOptions& options, uint32_t count,
                                      const WorkerSurroundings& surroundings);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_WORKERS_H_
