#include "worker/nn/layers/pool.h"

namespace syncgrads {
namespace {

Shape OutputOf(const Window& window) {
  return Shape::Image(window.input.channels, window.output_height, window.output_width);
}

}  // namespace

template <typename T>
MaxPool<T>::MaxPool(const std::string& name, Device<T>& device, const Window& window)
    : Layer<T>(name, device, window.input, OutputOf(window)),
      window_(window),
      chosen_(device.memory()),
      output_(device) {}

template <typename T>
const DeviceMatrix<T>& MaxPool<T>::Forward(const Pass&, const DeviceMatrix<T>& input) {
  output_.Resize(input.rows(), this->output_shape().size());
  chosen_.Resize(output_.rows(), output_.cols());
  this->device_.Pool(Pooling::kMax, window_, input.rows(), input.data(), output_.data(),
                     chosen_.data());
  return output_;
}

template <typename T>
void MaxPool<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                          DeviceMatrix<T>* input_gradient) {
  if (input_gradient == nullptr) return;
  input_gradient->Resize(input.rows(), input.cols());
  this->device_.PoolBackward(Pooling::kMax, window_, input.rows(), chosen_.data(),
                             output_gradient.data(), input_gradient->data());
}

template <typename T>
AveragePool<T>::AveragePool(const std::string& name, Device<T>& device, const Window& window,
                            bool flat)
    : Layer<T>(name, device, window.input,
               flat ? Shape::Flat(OutputOf(window).size()) : OutputOf(window)),
      window_(window),
      output_(device) {}

template <typename T>
const DeviceMatrix<T>& AveragePool<T>::Forward(const Pass&, const DeviceMatrix<T>& input) {
  output_.Resize(input.rows(), this->output_shape().size());
  this->device_.Pool(Pooling::kAverage, window_, input.rows(), input.data(), output_.data(),
                     /*chosen=*/nullptr);
  return output_;
}

template <typename T>
void AveragePool<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                              DeviceMatrix<T>* input_gradient) {
  if (input_gradient == nullptr) return;
  input_gradient->Resize(input.rows(), input.cols());
  this->device_.PoolBackward(Pooling::kAverage, window_, input.rows(), /*chosen=*/nullptr,
                             output_gradient.data(), input_gradient->data());
}

template class MaxPool<float>;
template class MaxPool<double>;
template class AveragePool<float>;
template class AveragePool<double>;

}  // namespace syncgrads
