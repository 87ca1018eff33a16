// A convolution over images.

#ifndef SYNCGRADS_WORKER_NN_LAYERS_CONV2D_H_
#define SYNCGRADS_WORKER_NN_LAYERS_CONV2D_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/nn/activation.h"
#include "worker/nn/layers/initialise.h"
#include "worker/nn/layers/layer.h"

namespace syncgrads {

struct Conv2dOptions {
  int64_t outputs = 0;  // output channels
  int64_t height = 1;   // of the window
  int64_t width = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  bool bias = true;
  Activation activation = Activation::kIdentity;
  Initialisation initialisation = Initialisation::kHeNormal;
};

// activation(cross-correlation + bias), compatible with PyTorch's Conv2d. Parameters:
// NAME.weight of shape [outputs, channels, height, width] and, with a bias, NAME.bias of shape
// [outputs], which starts as zeros.
template <typename T>
class Conv2d : public Layer<T> {
 public:
  // Errors: those of Window::Create.
  static absl::StatusOr<std::unique_ptr<Conv2d>> Create(const std::string& name, Device<T>& device,
                                                        const Shape& input,
                                                        const Conv2dOptions& options);

  std::vector<Parameter<T>*> parameters() override;
  void Initialise(uint64_t seed) override;
  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

 private:
  Conv2d(const std::string& name, Device<T>& device, const Window& window,
         const Conv2dOptions& options);

  Convolution<T> layer();

  const Conv2dOptions options_;
  const Window window_;
  Parameter<T> weight_;
  Parameter<T> bias_;
  DeviceMatrix<T> packed_;  // Convolution::packed
  DeviceMatrix<T> output_;
};

extern template class Conv2d<float>;
extern template class Conv2d<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_CONV2D_H_
