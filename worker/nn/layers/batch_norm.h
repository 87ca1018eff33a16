// Batch normalisation (Ioffe and Szegedy 2015).

#ifndef SYNCGRADS_WORKER_NN_LAYERS_BATCH_NORM_H_
#define SYNCGRADS_WORKER_NN_LAYERS_BATCH_NORM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "worker/nn/activation.h"
#include "worker/nn/layers/layer.h"

namespace syncgrads {

struct BatchNormOptions {
  double epsilon = 1e-5;
  // Weight of a new batch in the running statistics: running += momentum * (batch - running).
  double momentum = 0.1;
  Activation activation = Activation::kIdentity;
  // If an exchange is set: the mean and variance are those of all workers' batches together.
  bool across_workers = false;
};

// Batch normalisation: activation((x - mean) / sqrt(variance + epsilon) * weight + bias) for
// each channel of an image, or each number of a list.
//
// In training the mean and the variance are those of the batch, and the running statistics are
// updated with the mean and the unbiased variance. In evaluation the running statistics are
// used.
//
// Compatible with PyTorch's BatchNorm. Parameters: NAME.weight starts as 1, NAME.bias as 0.
// States: NAME.running_mean starts as 0, NAME.running_var as 1.
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

  // Whether the layer has an activation of its own.
  bool has_activation() const { return options_.activation != Activation::kIdentity; }
  // The residual of the next Forward, which returns `activation` of the sum of the normalised
  // numbers and the residual. The layer must have no activation of its own. `residual` must stay
  // valid until Forward has returned. After Backward, its `output_gradient` is the gradient by
  // the residual.
  void AddResidual(const DeviceMatrix<T>& residual, Activation activation) {
    residual_ = &residual;
    residual_activation_ = activation;
  }

  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override;
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override;

 private:
  int64_t channels() const { return this->input_shape().channels; }
  // Numbers in each channel: samples times positions in the image.
  int64_t RowsOf(const DeviceMatrix<T>& input) const {
    return input.rows() * this->input_shape().positions();
  }
  // Replaces the statistics of this worker's batch by those of all workers' batches together,
  // and updates the running statistics with them.
  void ExchangeStatistics(int64_t rows);
  // Exchange only: subtracts from `input_gradient` the part that comes from the dependence of
  // the statistics on the input. Reads this worker's sums from the gradients of weight_ and
  // bias_, so these must have been set.
  void SubtractMeans(int64_t rows, const DeviceMatrix<T>& input, DeviceMatrix<T>& input_gradient);
  // The normalisation with the statistics that the last Forward used.
  Normalisation<T> layer(int64_t rows);

  const BatchNormOptions options_;
  Parameter<T> weight_;
  Parameter<T> bias_;
  Parameter<T> running_mean_;
  Parameter<T> running_variance_;
  BatchExchange* exchange_ = nullptr;
  // Rows of all workers in the last Forward with an exchange.
  int64_t all_rows_ = 0;
  // Exchange only: statistics on their way between host and device, and the factors and the
  // result of SubtractMeans().
  Matrix<T> host_mean_;
  Matrix<T> host_variance_;
  Matrix<T> host_scale_;
  Matrix<T> host_shift_;
  DeviceArray<T> scale_;
  DeviceArray<T> shift_;
  DeviceMatrix<T> correction_;
  // See AddResidual.
  const DeviceMatrix<T>* residual_ = nullptr;
  Activation residual_activation_ = Activation::kIdentity;
  // Saved by the last Forward for Backward. If of_batch_, the statistics were those of the batch;
  // otherwise the running statistics.
  bool of_batch_ = false;
  Activation activation_ = Activation::kIdentity;
  DeviceArray<T> mean_;
  DeviceArray<T> variance_;
  DeviceMatrix<T> output_;
};

extern template class BatchNorm<float>;
extern template class BatchNorm<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LAYERS_BATCH_NORM_H_
