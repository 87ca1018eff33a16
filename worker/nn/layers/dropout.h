// Dropout (Srivastava et al. 2014).

#ifndef SYNCGRADS_WORKER_NN_LAYERS_DROPOUT_H_
#define SYNCGRADS_WORKER_NN_LAYERS_DROPOUT_H_

#include <cstdint>
#include <string>

#include "worker/nn/layers/layer.h"

namespace syncgrads {

// Dropout: in training, sets each number to 0 with probability `rate` and divides the others by
// 1 - rate. The choice is a function of the pass and the layer's name. In evaluation, returns
// the input.
template <typename T>
class Dropout : public Layer<T> {
 public:
  // `rate` is at least 0 and below 1.
  Dropout(const std::string& name, Device<T>& device, const Shape& input, double rate)
      : Layer<T>(name, device, input, input), rate_(rate), output_(device) {}

  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

 private:
  const double rate_;
  // Of the last Forward: whether it dropped numbers, and the key of its choice.
  bool drops_ = false;
  uint64_t key_ = 0;
  DeviceMatrix<T> output_;
};

extern template class Dropout<float>;
extern template class Dropout<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_DROPOUT_H_
