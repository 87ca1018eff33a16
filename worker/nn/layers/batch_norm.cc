#include "worker/nn/layers/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

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
      scale_(device.memory(), 1, input.channels),
      shift_(device.memory(), 1, input.channels),
      correction_(device),
      mean_(device.memory(), 1, input.channels),
      variance_(device.memory(), 1, input.channels),
      output_(device) {
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
Normalisation<T> BatchNorm<T>::layer(int64_t rows) {
  Normalisation<T> layer;
  layer.rows = rows;
  layer.channels = channels();
  layer.epsilon = options_.epsilon;
  layer.mean = of_batch_ ? mean_.data() : running_mean_.device_values();
  layer.variance = of_batch_ ? variance_.data() : running_variance_.device_values();
  layer.scale = weight_.device_values();
  layer.shift = bias_.device_values();
  layer.activation = activation_;
  return layer;
}

template <typename T>
const DeviceMatrix<T>& BatchNorm<T>::Forward(const Pass& pass, const DeviceMatrix<T>& input) {
  const int64_t rows = RowsOf(input);
  of_batch_ = pass.training;
  if (of_batch_) {
    BatchStatistics<T> statistics = {mean_.data(), variance_.data()};
    if (exchange_ == nullptr) {
      statistics.running_mean = running_mean_.device_values();
      statistics.running_variance = running_variance_.device_values();
      statistics.momentum = options_.momentum;
    }
    this->device_.FindStatistics(rows, channels(), input.data(), statistics);
    if (exchange_ != nullptr) ExchangeStatistics(rows);
  }
  output_.Resize(input.rows(), input.cols());
  activation_ = residual_ == nullptr ? options_.activation : residual_activation_;
  Normalisation<T> normalisation = layer(rows);
  if (residual_ != nullptr) normalisation.residual = residual_->data();
  residual_ = nullptr;
  this->device_.Normalise(normalisation, input.data(), output_.data());
  return output_;
}

template <typename T>
void BatchNorm<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                            DeviceMatrix<T>* input_gradient) {
  if (input_gradient != nullptr) input_gradient->Resize(input.rows(), input.cols());
  const int64_t rows = RowsOf(input);
  const bool exchanges = of_batch_ && exchange_ != nullptr;
  this->device_.NormaliseBackward(layer(rows), of_batch_ && !exchanges, input.data(),
                                  output_.data(), output_gradient.data(),
                                  {weight_.device_gradient(), bias_.device_gradient(),
                                   input_gradient == nullptr ? nullptr : input_gradient->data()});
  if (exchanges && input_gradient != nullptr) SubtractMeans(rows, input, *input_gradient);
}

template <typename T>
void BatchNorm<T>::ExchangeStatistics(int64_t rows) {
  const auto count = static_cast<double>(rows);
  mean_.Fetch(host_mean_).IgnoreError();  // the device's status keeps the error
  variance_.Fetch(host_variance_).IgnoreError();
  // The number of rows, and for each channel the sum and the sum of squares.
  const int64_t c = channels();
  std::vector<double> sums(static_cast<size_t>(1 + 2 * c));
  sums[0] = count;
  for (int64_t i = 0; i < c; ++i) {
    const double mean = host_mean_(0, i);
    sums[1 + i] = count * mean;
    sums[1 + c + i] = count * (host_variance_(0, i) + mean * mean);
  }
  // The owner of the exchange checks for errors.
  exchange_->Sum(absl::StrCat(this->name(), "/forward"), absl::MakeSpan(sums)).IgnoreError();
  all_rows_ = static_cast<int64_t>(sums[0]);
  for (int64_t i = 0; i < c; ++i) {
    const double mean = sums[1 + i] / sums[0];
    host_mean_(0, i) = static_cast<T>(mean);
    // Rounding must not make the variance negative.
    host_variance_(0, i) = static_cast<T>(std::max(0.0, sums[1 + c + i] / sums[0] - mean * mean));
  }
  DeviceMemory& memory = this->device_.memory();
  memory.Upload(host_mean_.data(), mean_.bytes(), mean_.data());
  memory.Upload(host_variance_.data(), variance_.bytes(), variance_.data());
  // One number has no unbiased variance; the biased one, 0, is used.
  const T unbiased =
      all_rows_ > 1 ? static_cast<T>(all_rows_) / static_cast<T>(all_rows_ - 1) : T{1};
  const T momentum = static_cast<T>(options_.momentum);
  running_mean_.Fetch().IgnoreError();
  running_variance_.Fetch().IgnoreError();
  running_mean_.values += momentum * (host_mean_ - running_mean_.values);
  running_variance_.values += momentum * (unbiased * host_variance_ - running_variance_.values);
  running_mean_.Upload();
  running_variance_.Upload();
}

template <typename T>
void BatchNorm<T>::SubtractMeans(int64_t rows, const DeviceMatrix<T>& input,
                                 DeviceMatrix<T>& input_gradient) {
  const int64_t c = channels();
  DeviceMemory& memory = this->device_.memory();
  host_scale_.resize(1, c);
  host_shift_.resize(1, c);
  memory.DownloadNow(weight_.device_gradient(), weight_.bytes(), host_scale_.data()).IgnoreError();
  memory.DownloadNow(bias_.device_gradient(), bias_.bytes(), host_shift_.data()).IgnoreError();
  // A worker's sums have the same weight as its gradient in the average.
  const double weight = exchange_->weight();
  std::vector<double> sums(static_cast<size_t>(2 * c));
  for (int64_t i = 0; i < c; ++i) {
    sums[i] = weight * host_scale_(0, i);
    sums[c + i] = weight * host_shift_(0, i);
  }
  exchange_->Sum(absl::StrCat(this->name(), "/backward"), absl::MakeSpan(sums)).IgnoreError();
  for (int64_t i = 0; i < c; ++i) {
    const double inverse_deviation = 1 / std::sqrt(host_variance_(0, i) + options_.epsilon);
    const double factor = -static_cast<double>(weight_.values.data()[i]) * inverse_deviation /
                          (static_cast<double>(all_rows_) * weight);
    host_scale_(0, i) = static_cast<T>(factor * sums[i]);
    host_shift_(0, i) = static_cast<T>(factor * sums[c + i]);
  }
  memory.Upload(host_scale_.data(), scale_.bytes(), scale_.data());
  memory.Upload(host_shift_.data(), shift_.bytes(), shift_.data());
  correction_.Resize(input.rows(), input.cols());
  Normalisation<T> correction = layer(rows);
  correction.scale = scale_.data();
  correction.shift = shift_.data();
  correction.residual = input_gradient.data();
  correction.activation = Activation::kIdentity;
  this->device_.Normalise(correction, input.data(), correction_.data());
  std::swap(correction_, input_gradient);
}

template class BatchNorm<float>;
template class BatchNorm<double>;

}  // namespace syncgrads
