// activation(input * kernel + bias).

#ifndef SYNCGRADS_WORKER_NN_DENSE_H_
#define SYNCGRADS_WORKER_NN_DENSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "worker/nn/activation.h"
#include "worker/nn/layer.h"

namespace syncgrads {

// A fully connected layer with parameters NAME/kernel of shape [inputs, outputs]
// and NAME/bias of shape [outputs].
//
// The kernel starts uniform in +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio,
// "Understanding the difficulty of training deep feedforward neural networks",
// 2010), the bias as zeros.
template <typename T>
class Dense : public Layer<T> {
 public:
  Dense(const std::string& name, int64_t inputs, int64_t outputs, Activation activation);

  int64_t inputs() const override { return kernel_.values.rows(); }
  int64_t outputs() const override { return kernel_.values.cols(); }
  std::vector<Parameter<T>*> parameters() override { return {&kernel_, &bias_}; }
  std::vector<Parameter<T>*> states() override { return {}; }
  void Initialise(uint64_t seed) override;
  const Matrix<T>& Forward(const Matrix<T>& input) override;
  void Backward(const Matrix<T>& input, Matrix<T>& output_gradient,
                Matrix<T>* input_gradient) override;

 private:
  const Activation activation_;
  Parameter<T> kernel_;
  Parameter<T> bias_;
  Matrix<T> output_;
};

extern template class Dense<float>;
extern template class Dense<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DENSE_H_
