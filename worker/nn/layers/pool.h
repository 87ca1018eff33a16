// Pooling: each window becomes one number for each channel.

#ifndef SYNCGRADS_WORKER_NN_LAYERS_POOL_H_
#define SYNCGRADS_WORKER_NN_LAYERS_POOL_H_

#include <cstdint>
#include <string>

#include "worker/nn/layers/layer.h"

namespace syncgrads {

// Max pooling: the largest number of each window.
template <typename T>
class MaxPool : public Layer<T> {
 public:
  MaxPool(const std::string& name, Device<T>& device, const Window& window);

  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

 private:
  const Window window_;
  DeviceArray<int32_t> chosen_;
  DeviceMatrix<T> output_;
};

// Average pooling: the mean of each window; padding counts as zeros. With `flat`, the output
// shape is a list instead of an image; `flat` is meant for windows as large as the image.
template <typename T>
class AveragePool : public Layer<T> {
 public:
  AveragePool(const std::string& name, Device<T>& device, const Window& window, bool flat = false);

  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

 private:
  const Window window_;
  DeviceMatrix<T> output_;
};

extern template class MaxPool<float>;
extern template class MaxPool<double>;
extern template class AveragePool<float>;
extern template class AveragePool<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_POOL_H_
