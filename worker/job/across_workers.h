// Checks for models with batch normalisation across workers.

#ifndef SYNCGRADS_WORKER_JOB_ACROSS_WORKERS_H_
#define SYNCGRADS_WORKER_JOB_ACROSS_WORKERS_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// Whether `model` has a layer that uses the batches of all workers.
bool LooksAcrossWorkers(const v1::ModelSpec& model);

// InvalidArgument if the model uses the batches of all workers, and the job has an option that
// does not permit it: `elastic`, gradient accumulation, or a consistency other than sync.
absl::Status CheckAcrossWorkers(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_ACROSS_WORKERS_H_
