// Converts an image to a list of numbers.

#ifndef SYNCGRADS_WORKER_NN_LAYERS_FLATTEN_H_
#define SYNCGRADS_WORKER_NN_LAYERS_FLATTEN_H_

#include <string>

#include "worker/nn/layers/layer.h"

namespace syncgrads {

// Puts the numbers of an image in the order channel by channel, line by line. The weights of
// dense layers have this order in other frameworks. A list stays as it is.
template <typename T>
class Flatten : public Layer<T> {
 public:
  Flatten(const std::string& name, Device<T>& device, const Shape& input)
      : Layer<T>(name, device, input, Shape::Flat(input.size())), output_(device) {}

  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

 private:
  DeviceMatrix<T> output_;
};

extern template class Flatten<float>;
extern template class Flatten<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_FLATTEN_H_
