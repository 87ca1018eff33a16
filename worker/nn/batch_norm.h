// Batch normalisation (Ioffe and Szegedy 2015).

#ifndef SYNCGRADS_WORKER_NN_BATCH_NORM_H_
#define SYNCGRADS_WORKER_NN_BATCH_NORM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "worker/nn/activation.h"
#include "worker/nn/layer.h"

namespace syncgrads {

struct BatchNormOptions {
  double epsilon = 1e-5;
  // How far the running statistics move towards each batch's.
  double momentum = 0.1;
  Activation activation = Activation::kIdentity;
  // Mean and variance are those of all workers' batches together, where there is an
  // exchange.
  bool across_workers = false;
};

// activation((x - mean) / sqrt(variance + epsilon) * weight + bias) for each
// channel of an image, or each number of a list. Mean and variance are the
// batch's in training, and the running statistics otherwise; those move with each
// batch of training, the variance counted without bias. As PyTorch's BatchNorm:
// parameters NAME.weight and NAME.bias, states NAME.running_mean and
// NAME.running_var. They start as 1, 0, 0 and 1.
template <typename T>
class BatchNorm : public Layer<T> {
 public:
  BatchNorm(const std::string& name, Device<T>& device, const Shape& input,
            const BatchNormOptions& options);

  std::vector<Parameter<T>*> parameters() override { return {&weight_, &bias_}; }
  std::vector<Parameter<T>*> states() override { return {&running_mean_, &running_variance_}; }
  void SetExchange(BatchExchange* exchange) override {
    if (options_.across_workers) exchange_ = exchange;
  }
  void Initialise(uint64_t seed) override;
  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

 private:
  int64_t channels() const { return this->input_shape().channels; }
  // Samples times places of an image.
  int64_t RowsOf(const DeviceMatrix<T>& input) const {
    return input.rows() * this->input_shape().positions();
  }
  void MoveStatistics(int64_t rows);
  // Makes the moments of this worker's batch those of all workers'.
  void ExchangeMoments(int64_t rows);
  // Subtracts what the moments' own dependence on the input is, of which this worker's
  // sums are in the parameters' gradients.
  void SubtractMeans(int64_t rows, const DeviceMatrix<T>& input, DeviceMatrix<T>& input_gradient);
  BatchMoments<T> Moments();

  const BatchNormOptions options_;
  Parameter<T> weight_;
  Parameter<T> bias_;
  Parameter<T> running_mean_;
  Parameter<T> running_variance_;
  BatchExchange* exchange_ = nullptr;
  // Of all workers, of the last Forward with an exchange.
  int64_t all_rows_ = 0;
  // What is on its way to the device, and what it is for.
  Matrix<T> host_mean_;
  Matrix<T> host_variance_;
  Matrix<T> host_scale_;
  Matrix<T> host_shift_;
  DeviceMatrix<T> scale_;
  DeviceMatrix<T> shift_;
  DeviceMatrix<T> correction_;
  // Of the last Forward.
  bool of_batch_ = false;
  DeviceMatrix<T> mean_;
  DeviceMatrix<T> inverse_deviation_;
  DeviceMatrix<T> variance_;
  DeviceMatrix<T> output_;
};

extern template class BatchNorm<float>;
extern template class BatchNorm<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_BATCH_NORM_H_
