#include "worker/nn/batch_norm.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace syncgrads {

template <typename T>
BatchNorm<T>::BatchNorm(const std::string& name, Device<T>& device, const Shape& input,
                        const BatchNormOptions& options)
    : Layer<T>(name, device, input, input),
      options_(options),
      weight_(Parameter<T>::Vector(absl::StrCat(name, ".weight"), input.channels)),
      bias_(Parameter<T>::Vector(absl::StrCat(name, ".bias"), input.channels)),
      running_mean_(Parameter<T>::Vector(absl::StrCat(name, ".running_mean"), input.channels,
                                         /*trained=*/false)),
      running_variance_(Parameter<T>::Vector(absl::StrCat(name, ".running_var"), input.channels,
                                             /*trained=*/false)),
      mean_(1, input.channels),
      inverse_deviation_(1, input.channels),
      variance_(1, input.channels) {
  Initialise(0);
}

template <typename T>
void BatchNorm<T>::Initialise(uint64_t) {
  weight_.values.setOnes();
  bias_.values.setZero();
  running_mean_.values.setZero();
  running_variance_.values.setOnes();
}

template <typename T>
void BatchNorm<T>::MoveStatistics(int64_t rows) {
  const T momentum = static_cast<T>(options_.momentum);
  // A batch of one has no variance: its estimate is left as it is, 0.
  const T unbiased = rows > 1 ? static_cast<T>(rows) / static_cast<T>(rows - 1) : T{1};
  running_mean_.values += momentum * (mean_ - running_mean_.values);
  running_variance_.values += momentum * (unbiased * variance_ - running_variance_.values);
}

template <typename T>
const Matrix<T>& BatchNorm<T>::Forward(const Pass& pass, const Matrix<T>& input) {
  const int64_t rows = RowsOf(input);
  of_batch_ = pass.training;
  const BatchMoments<T> moments = {mean_.data(), inverse_deviation_.data()};
  if (of_batch_) {
    this->device_.FindMoments(rows, channels(), static_cast<T>(options_.epsilon), input.data(),
                              moments, variance_.data());
    MoveStatistics(rows);
  } else {
    mean_ = running_mean_.values;
    inverse_deviation_ =
        (running_variance_.values.array() + static_cast<T>(options_.epsilon)).sqrt().inverse();
  }
  output_.resize(input.rows(), input.cols());
  this->device_.Normalise(rows, channels(), moments, weight_.values.data(), bias_.values.data(),
                          input.data(), output_.data());
  this->device_.Activate(options_.activation, output_.size(), output_.data());
  return output_;
}

template <typename T>
void BatchNorm<T>::Backward(const Matrix<T>& input, Matrix<T>& output_gradient,
                            Matrix<T>* input_gradient) {
  this->device_.MultiplyByDerivative(options_.activation, output_.size(), output_.data(),
                                     output_gradient.data());
  if (input_gradient != nullptr) input_gradient->resize(input.rows(), input.cols());
  this->device_.NormaliseBackward(
      RowsOf(input), channels(), {mean_.data(), inverse_deviation_.data()}, of_batch_,
      weight_.values.data(), input.data(), output_gradient.data(), weight_.gradient.data(),
      bias_.gradient.data(), input_gradient == nullptr ? nullptr : input_gradient->data());
}

template class BatchNorm<float>;
template class BatchNorm<double>;

}  // namespace syncgrads
