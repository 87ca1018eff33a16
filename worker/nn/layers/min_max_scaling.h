// An input layer that scales a range of each feature to [-1, 1].

#ifndef SYNCGRADS_WORKER_NN_LAYERS_MIN_MAX_SCALING_H_
#define SYNCGRADS_WORKER_NN_LAYERS_MIN_MAX_SCALING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/nn/layers/layer.h"

namespace syncgrads {

// 2 (x - minimum) / (maximum - minimum) - 1, or 0 if the maximum is not above the minimum. The
// ranges are the states NAME/minimum and NAME/maximum, of shape [features]. They are zeros until
// SetRanges. The layer min_max_scaling has the range of the data. The layer standard_scaling has
// the mean minus and plus the standard deviation, so that the result is (x - mean) / deviation.
template <typename T>
class MinMaxScaling : public Layer<T> {
 public:
  MinMaxScaling(const std::string& name, Device<T>& device, const Shape& input);

  std::vector<Parameter<T>*> states() override { return {&minimum_, &maximum_}; }
  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

  // Sets the host's values of the ranges. Each span has one number for each feature.
  void SetRanges(absl::Span<const double> minimum, absl::Span<const double> maximum);

 private:
  Parameter<T> minimum_;
  Parameter<T> maximum_;
  DeviceMatrix<T> output_;
};

extern template class MinMaxScaling<float>;
extern template class MinMaxScaling<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_MIN_MAX_SCALING_H_
