// Builds models and losses from a job file.

#ifndef SYNCGRADS_WORKER_NN_MODELS_BUILD_H_
#define SYNCGRADS_WORKER_NN_MODELS_BUILD_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/nn/custom_losses.h"
#include "worker/nn/layers/custom_layers.h"
#include "worker/nn/layers/min_max_scaling.h"
#include "worker/nn/loss.h"
#include "worker/nn/models/model.h"

namespace syncgrads {

// Builds the model that `spec` describes. `spec` must have passed ParseJobFile; `input` is the
// shape of a sample. `device` must outlive the model.
//
// Errors:
//   InvalidArgument  a layer cannot take the output shape of the layer before it; names the
//                    layer and the shape
//   others           those of CustomLayers::Create
template <typename T>
absl::StatusOr<std::unique_ptr<Model<T>>> BuildModel(const v1::ModelSpec& spec, const Shape& input,
                                                     const CustomLayers& custom, Device<T>& device);

// Returns the model's input-scaling layer, or null if there is none. The caller must set its
// ranges. The model owns it and must have at least one layer.
template <typename T>
MinMaxScaling<T>* FindMinMaxScaling(const Model<T>& model);

// Builds the loss that `spec` describes, for a model with `outputs` outputs and rows with
// `targets_per_row` targets. `spec` must have passed ParseJobFile.
//
// Errors: those of CustomLosses::Create.
absl::StatusOr<Loss> BuildLoss(const v1::LossSpec& spec, int64_t outputs,
                               const CustomLosses& custom, size_t targets_per_row = 1);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_MODELS_BUILD_H_
