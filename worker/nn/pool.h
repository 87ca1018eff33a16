// Pooling: what is below a window becomes one number for each channel.

#ifndef SYNCGRADS_WORKER_NN_POOL_H_
#define SYNCGRADS_WORKER_NN_POOL_H_

#include <cstdint>
#include <string>

#include "worker/nn/layer.h"

namespace syncgrads {

// The largest number.
template <typename T>
class MaxPool : public Layer<T> {
 public:
  MaxPool(const std::string& name, Device<T>& device, const Window& window);

  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

 private:
  const Window window_;
  DeviceMatrix<int32_t> chosen_;
  DeviceMatrix<T> output_;
};

// The mean; padding counts as zeros. With a window as large as the image and
// `flat`, the result is a list of a number for each channel.
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

#endif  // SYNCGRADS_WORKER_NN_POOL_H_
