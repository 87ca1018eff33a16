#include "worker/nn/batch_norm.h"

#include <algorithm>

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
      correction_(device.memory()),
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

// The moments that the last Forward used.
template <typename T>
BatchMoments<T> BatchNorm<T>::Moments() {
  return {of_batch_ ? mean_.data() : running_mean_.device_values(), inverse_deviation_.data()};
}

template <typename T>
void BatchNorm<T>::MoveStatistics(int64_t rows) {
  const T momentum = static_cast<T>(options_.momentum);
  // One number has no unbiased variance; the biased one, 0, is used.
  const T unbiased = rows > 1 ? static_cast<T>(rows) / static_cast<T>(rows - 1) : T{1};
  this->device_.UpdateMovingAverage(channels(), momentum, T{1}, mean_.data(),
                                    running_mean_.device_values());
  this->device_.UpdateMovingAverage(channels(), momentum, unbiased, variance_.data(),
                                    running_variance_.device_values());
}

template <typename T>
const DeviceMatrix<T>& BatchNorm<T>::Forward(const Pass& pass, const DeviceMatrix<T>& input) {
  const int64_t rows = RowsOf(input);
  of_batch_ = pass.training;
  const T epsilon = static_cast<T>(options_.epsilon);
  if (of_batch_) {
    this->device_.FindMoments(rows, channels(), epsilon, input.data(), Moments(), variance_.data());
    if (exchange_ != nullptr) ExchangeMoments(rows);
    MoveStatistics(exchange_ != nullptr ? all_rows_ : rows);
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
  const bool exchanges = of_batch_ && exchange_ != nullptr;
  this->device_.NormaliseBackward(RowsOf(input), channels(), Moments(), of_batch_ && !exchanges,
                                  weight_.device_values(), input.data(), output_gradient.data(),
                                  weight_.device_gradient(), bias_.device_gradient(),
                                  input_gradient == nullptr ? nullptr : input_gradient->data());
  if (exchanges && input_gradient != nullptr) {
    SubtractMeans(RowsOf(input), input, *input_gradient);
  }
}

template <typename T>
void BatchNorm<T>::ExchangeMoments(int64_t rows) {
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
  this->device_.InvertDeviations(c, static_cast<T>(options_.epsilon), variance_.data(),
                                 inverse_deviation_.data());
}

template <typename T>
void BatchNorm<T>::SubtractMeans(int64_t rows, const DeviceMatrix<T>& input,
                                 DeviceMatrix<T>& input_gradient) {
  const int64_t c = channels();
  DeviceMemory& memory = this->device_.memory();
  Matrix<T> inverse_deviation;
  inverse_deviation_.Fetch(inverse_deviation).IgnoreError();
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
    const double factor = -static_cast<double>(weight_.values.data()[i]) * inverse_deviation(0, i) /
                          (static_cast<double>(all_rows_) * weight);
    host_scale_(0, i) = static_cast<T>(factor * sums[i]);
    host_shift_(0, i) = static_cast<T>(factor * sums[c + i]);
  }
  memory.Upload(host_scale_.data(), scale_.bytes(), scale_.data());
  memory.Upload(host_shift_.data(), shift_.bytes(), shift_.data());
  correction_.Resize(input.rows(), input.cols());
  this->device_.Normalise(rows, c, Moments(), scale_.data(), shift_.data(), input.data(),
                          correction_.data());
  this->device_.Add(input_gradient.size(), input_gradient.data(), correction_.data(),
                    input_gradient.data());
}

template class BatchNorm<float>;
template class BatchNorm<double>;

}  // namespace syncgrads
