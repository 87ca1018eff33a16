// Models and losses as a job file describes them.

#ifndef SYNCGRADS_WORKER_NN_BUILD_H_
#define SYNCGRADS_WORKER_NN_BUILD_H_

#include <cstdint>
#include <memory>

#include "proto/job.pb.h"
#include "worker/nn/loss.h"
#include "worker/nn/model.h"
#include "worker/nn/window_input.h"

namespace syncgrads {

// `spec` is one that ParseJobFile has let pass; `features` is at least 1.
template <typename T>
std::unique_ptr<Model<T>> BuildModel(const v1::ModelSpec& spec, int64_t features);

// The layer whose ranges are to be set, or null. It belongs to `model`.
template <typename T>
WindowInput<T>* FindWindowInput(const Model<T>& model);

// `spec` is one that ParseJobFile has let pass.
Loss BuildLoss(const v1::LossSpec& spec);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_BUILD_H_
