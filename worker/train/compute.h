// The device that a job's workers compute on.

#ifndef SYNCGRADS_WORKER_TRAIN_COMPUTE_H_
#define SYNCGRADS_WORKER_TRAIN_COMPUTE_H_

#include <cstdint>
#include <memory>

#include "proto/job.pb.h"
#include "worker/nn/device.h"

namespace syncgrads {

// How many threads each worker computes with.
int ThreadsOf(const v1::JobFile& job, uint32_t world_size);

// The processor, with the job's threads; see proto/job.proto.
template <typename T>
std::unique_ptr<Device<T>> MakeDevice(const v1::JobFile& job, uint32_t world_size);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_COMPUTE_H_
