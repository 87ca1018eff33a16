// A fully connected layer: activation(input * kernel + bias).

#ifndef SYNCGRADS_WORKER_NN_LAYERS_DENSE_H_
#define SYNCGRADS_WORKER_NN_LAYERS_DENSE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/nn/activation.h"
#include "worker/nn/layers/initialise.h"
#include "worker/nn/layers/layer.h"

namespace syncgrads {

struct DenseOptions {
  int64_t outputs = 0;
  Activation activation = Activation::kIdentity;
  Initialisation initialisation = Initialisation::kGlorotUniform;
  // Use the parameters of PyTorch's Linear: NAME.weight of shape [outputs, inputs], and
  // NAME.bias.
  bool torch_names = false;
};

// A fully connected layer with parameters NAME/kernel of shape [inputs, outputs] and NAME/bias
// of shape [outputs]. With torch_names it has the parameters of PyTorch's Linear instead. The
// bias starts as zeros.
template <typename T>
class Dense : public Layer<T> {
 public:
  // InvalidArgument if `input` is an image; the message names the layer and the shape.
  static absl::StatusOr<std::unique_ptr<Dense>> Create(const std::string& name, Device<T>& device,
                                                       const Shape& input,
                                                       const DenseOptions& options);

  std::vector<Parameter<T>*> parameters() override { return {&kernel_, &bias_}; }
  void Initialise(uint64_t seed) override;
  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

 private:
  Dense(const std::string& name, Device<T>& device, const Shape& input,
        const DenseOptions& options);

  Affine<T> layer();
  int64_t inputs() const { return this->input_shape().size(); }
  int64_t outputs() const { return this->output_shape().size(); }

  const DenseOptions options_;
  Parameter<T> kernel_;
  Parameter<T> bias_;
  DeviceMatrix<T> packed_;  // see Affine
  DeviceMatrix<T> output_;
};

extern template class Dense<float>;
extern template class Dense<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_DENSE_H_
