// Converts the `consistency` of a job file.

#ifndef SYNCGRADS_WORKER_JOB_CONSISTENCY_H_
#define SYNCGRADS_WORKER_JOB_CONSISTENCY_H_

#include "common/group/policy.h"
#include "common/update_rule.h"
#include "proto/job.pb.h"

namespace syncgrads {

// Returns the policy that closes the rounds of the training group.
Policy PolicyOf(const v1::Consistency& consistency);

// Returns the optimizer that servers apply to the average of the workers' changes. A change is
// the parameters at the start of a cycle minus those at its end, so it has the sign of a
// gradient.
Optimizer OuterOptimizerOf(const v1::LocalSteps& local);

// Whether each worker reads all of the data instead of its own shards only.
bool ReadsAllData(const v1::JobFile& job);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CONSISTENCY_H_
