// Models and losses as a job file describes them.

#ifndef SYNCGRADS_WORKER_NN_BUILD_H_
#define SYNCGRADS_WORKER_NN_BUILD_H_

#include <memory>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/nn/custom_layers.h"
#include "worker/nn/custom_losses.h"
#include "worker/nn/loss.h"
#include "worker/nn/model.h"
#include "worker/nn/window_input.h"

namespace syncgrads {

// `spec` is one that ParseJobFile has let pass; `input` is what a sample looks
// like. `device` outlives the model.
//
// Errors:
//   InvalidArgument  a layer cannot take the shape that the one before makes;
//                    names the layer and both; or as CustomLayers::Create
template <typename T>
absl::StatusOr<std::unique_ptr<Model<T>>> BuildModel(const v1::ModelSpec& spec, const Shape& input,
                                                     const CustomLayers& custom, Device<T>& device);

// The layer whose ranges are to be set, or null. It belongs to `model`.
template <typename T>
WindowInput<T>* FindWindowInput(const Model<T>& model);

// `spec` is one that ParseJobFile has let pass, of a model with so many outputs.
//
// Errors: as CustomLosses::Create.
absl::StatusOr<Loss> BuildLoss(const v1::LossSpec& spec, int64_t outputs,
                               const CustomLosses& custom);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_BUILD_H_
