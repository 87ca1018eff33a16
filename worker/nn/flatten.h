// An image as a list of numbers.

#ifndef SYNCGRADS_WORKER_NN_FLATTEN_H_
#define SYNCGRADS_WORKER_NN_FLATTEN_H_

#include <string>

#include "worker/nn/layer.h"

namespace syncgrads {

// Channel by channel, line by line: the order that the weights of dense layers
// have in other systems. A list stays as it is.
template <typename T>
class Flatten : public Layer<T> {
 public:
  Flatten(const std::string& name, Device<T>& device, const Shape& input)
      : Layer<T>(name, device, input, Shape::Flat(input.size())) {}

  const Matrix<T>& Forward(const Pass& pass, const Matrix<T>& input) override;
  void Backward(const Matrix<T>& input, Matrix<T>& output_gradient,
                Matrix<T>* input_gradient) override;

 private:
  Matrix<T> output_;
};

extern template class Flatten<float>;
extern template class Flatten<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_FLATTEN_H_
