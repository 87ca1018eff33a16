// What a job file's `consistency` comes to.

#ifndef SYNCGRADS_WORKER_JOB_CONSISTENCY_H_
#define SYNCGRADS_WORKER_JOB_CONSISTENCY_H_

#include "common/policy.h"
#include "common/update_rule.h"
#include "proto/job.pb.h"

namespace syncgrads {

// When a round of the training group closes.
Policy PolicyOf(const v1::Consistency& consistency);

// What the servers apply to the average of the workers' changes, whose sign is that of
// a gradient: what a worker began a cycle with, less what it ended it with.
Optimizer OuterOptimizerOf(const v1::LocalSteps& local);

// Whether every worker has all of the data, and not its own shards alone.
bool ReadsAllData(const v1::JobFile& job);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CONSISTENCY_H_
