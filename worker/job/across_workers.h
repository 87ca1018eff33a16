// Layers that look at the batches of all workers.

#ifndef SYNCGRADS_WORKER_JOB_ACROSS_WORKERS_H_
#define SYNCGRADS_WORKER_JOB_ACROSS_WORKERS_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// Whether `model` has such a layer.
bool LooksAcrossWorkers(const v1::ModelSpec& model);

// InvalidArgument if the job has such a layer and something with which it cannot be.
absl::Status CheckAcrossWorkers(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_ACROSS_WORKERS_H_
