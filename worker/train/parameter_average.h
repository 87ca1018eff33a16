// The exponential moving average of a model's parameters.

#ifndef SYNCGRADS_WORKER_TRAIN_PARAMETER_AVERAGE_H_
#define SYNCGRADS_WORKER_TRAIN_PARAMETER_AVERAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "proto/job.pb.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/nn/device.h"
#include "worker/nn/device_array.h"
#include "worker/nn/parameter.h"

namespace syncgrads {

// Returns the factor of the average before the update number `update`, counted from 1: the decay,
// but in the first updates (1 + update) / (10 + update) if that is less, so that the initial
// parameters have little weight.
double DecayOf(double decay, uint64_t update);

// The averages are on the device, like the parameters. The Trainer owns one, and its thread calls
// it. Not thread-safe.
template <typename T>
class ParameterAverage {
 public:
  // Creates averages with unspecified values. `device` and `parameters` outlive them.
  //
  // Errors:
  //   ResourceExhausted  the device has no room for the averages; names the parameter
  static absl::StatusOr<std::unique_ptr<ParameterAverage>> Create(
      const v1::MovingAverage& spec, Device<T>& device, absl::Span<Parameter<T>* const> parameters);

  // Sets the averages to the device's values of the parameters.
  void Begin();
  // Updates the averages with the device's values of the parameters, if this is due after `step`,
  // counted from 1.
  void Update(uint64_t step);

  // Exchanges the averages and the parameters on the device, and on the host if the host has both.
  // Errors: those of DeviceMemory::Finish.
  absl::Status Exchange();

  // Waits until the host has the device's averages. Errors: those of DeviceMemory::Wait.
  absl::Status Fetch();
  // Queues the upload of the host's averages; call it after writing them. They must not change
  // before DeviceMemory::Finish has returned.
  void Upload();
  // Tensors that point to the host's averages, for checkpoints and newcomers.
  std::vector<NamedTensor> state();

  // Whether the average is the job's model.
  bool is_model() const { return is_model_; }

 private:
  ParameterAverage(const v1::MovingAverage& spec, Device<T>& device,
                   absl::Span<Parameter<T>* const> parameters);
  absl::Status Allocate();

  const double decay_;
  const uint64_t every_;
  const bool is_model_;
  Device<T>& device_;
  const std::vector<Parameter<T>*> parameters_;
  std::vector<Parameter<T>> averages_;  // by parameter
  DeviceArray<T> room_;                 // as large as the largest parameter
  bool changed_ = false;                // since the last Fetch
};

// In a snapshot's `model`, each of these parameters is replaced with its average, and the parameter
// itself is moved to `training`. `averages` are the tensors of ParameterAverage::state.
void UseAverages(absl::Span<const NamedTensor> averages, Snapshot& snapshot);

// Undoes UseAverages, if the snapshot was taken with it: the parameters have their own names again,
// and their averages are in `training`. Adds those of `averages` that the snapshot does not have:
// they begin with the parameters.
void SeparateAverages(absl::Span<const NamedTensor> averages, Snapshot& snapshot);

extern template class ParameterAverage<float>;
extern template class ParameterAverage<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_PARAMETER_AVERAGE_H_
