#include "worker/nn/batch_norm.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {

template <typename T>
BatchNorm<T>::BatchNorm(const std::string& name, Device<T>& device, const Shape& input,
                        const BatchNormOptions& options)
    : Layer<T>(name, device, input, input),
      options_(options),
      weight_(Parameter<T>::Vector(device.memory(), absl::StrCat(name, ".weight"), input.channels)),
      bias_(Parameter<T>::Vector(device.memory(), absl::StrCat(name, ".bias"), input.channels)),
      running_mean_(Parameter<T>::Vector(device.memory(), absl::StrCat(name, ".running_mean"),
                                         input.channels,
                                         /*trained=*/false)),
      running_variance_(Parameter<T>::Vector(device.memory(), absl::StrCat(name, ".running_var"),
                                             input.channels,
                                             /*trained=*/false)),
      mean_(device.memory(), 1, input.channels),
      inverse_deviation_(device.memory(), 1, input.channels),
      variance_(device.memory(), 1, input.channels),
      output_(device.memory()) {
  Initialise(0);
}

template <typename T>
void BatchNorm<T>::Initialise(uint64_t) {
  weight_.values.setOnes();
  bias_.values.setZero();
  running_mean_.values.setZero();
  running_variance_.values.setOnes();
}

// What the last Forward normalised by.
template <typename T>
BatchMoments<T> BatchNorm<T>::Moments() {
  return {of_batch_ ? mean_.data() : running_mean_.device_values(), inverse_deviation_.data()};
}

template <typename T>
void BatchNorm<T>::MoveStatistics(int64_t rows) {
  const T momentum = static_cast<T>(options_.momentum);
  // A batch of one has no variance: its estimate is left as it is, 0.
  const T unbiased = rows > 1 ? static_cast<T>(rows) / static_cast<T>(rows - 1) : T{1};
  this->device_.MoveTowards(channels(), momentum, T{1}, mean_.data(),
                            running_mean_.device_values());
  this->device_.MoveTowards(channels(), momentum, unbiased, variance_.data(),
                            running_variance_.device_values());
}

template <typename T>
const DeviceMatrix<T>& BatchNorm<T>::Forward(const Pass& pass, const DeviceMatrix<T>& input) {
  const int64_t rows = RowsOf(input);
  of_batch_ = pass.training;
  const T epsilon = static_cast<T>(options_.epsilon);
  if (of_batch_) {
    this->device_.FindMoments(rows, channels(), epsilon, input.data(), Moments(), variance_.data());
    MoveStatistics(rows);
  } else {
    this->device_.InvertDeviations(channels(), epsilon, running_variance_.device_values(),
                                   inverse_deviation_.data());
  }
  output_.Resize(input.rows(), input.cols());
  this->device_.Normalise(rows, channels(), Moments(), weight_.device_values(),
                          bias_.device_values(), input.data(), output_.data());
  this->device_.Activate(options_.activation, output_.size(), output_.data());
  return output_;
}

template <typename T>
void BatchNorm<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                            DeviceMatrix<T>* input_gradient) {
  this->device_.MultiplyByDerivative(options_.activation, output_.size(), output_.data(),
                                     output_gradient.data());
  if (input_gradient != nullptr) input_gradient->Resize(input.rows(), input.cols());
  this->device_.NormaliseBackward(RowsOf(input), channels(), Moments(), of_batch_,
                                  weight_.device_values(), input.data(), output_gradient.data(),
                                  weight_.device_gradient(), bias_.device_gradient(),
                                  input_gradient == nullptr ? nullptr : input_gradient->data());
}

template class BatchNorm<float>;
template class BatchNorm<double>;

}  // namespace syncgrads
