// The processor in double precision, with activations in bfloat16.

#ifndef SYNCGRADS_TESTS_WORKER_NN_ROUNDING_DEVICE_H_
#define SYNCGRADS_TESTS_WORKER_NN_ROUNDING_DEVICE_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {

// Computes in double precision, but rounds activations, the gradients by them, and the weights that
// are multiplied, to 8 significant bits, wherever a device that stores bfloat16 does. So its errors
// are as large as those that such a device cannot avoid.
class RoundingDevice : public CpuDevice<double> {
 public:
  using Base = CpuDevice<double>;
  RoundingDevice() : Base(/*threads=*/1) {}

  // Returns the closest number with 8 significant bits. There is no smallest exponent.
  static double Rounded(double number) {
    int exponent = 0;
    const double fraction = std::frexp(number, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
  }

  void Convolve(const Convolution<double>& layer, int64_t samples, const Stored<double>* input,
                Stored<double>* output) override {
    const Convolution<double> rounded = WithRoundedWeights(layer);
    Base::Convolve(rounded, samples, input, output);
    Round(samples * layer.window.positions() * layer.outputs, output);
  }
  void ConvolveBackward(const Convolution<double>& layer, int64_t samples,
                        const Stored<double>* input, const Stored<double>* output,
                        Stored<double>* output_gradient,
                        const LayerGradients<double>& gradients) override {
    const Convolution<double> rounded = WithRoundedWeights(layer);
    Base::ConvolveBackward(rounded, samples, input, output, output_gradient, gradients);
    Round(samples * layer.window.input.size(), gradients.input);
  }
  void Multiply(const Affine<double>& layer, int64_t samples, const Stored<double>* input,
                Stored<double>* output) override {
    Base::Multiply(WithRoundedKernel(layer), samples, input, output);
    Round(samples * layer.outputs, output);
  }
  void MultiplyBackward(const Affine<double>& layer, int64_t samples, const Stored<double>* input,
                        const Stored<double>* output, Stored<double>* output_gradient,
                        const LayerGradients<double>& gradients) override {
    Base::MultiplyBackward(WithRoundedKernel(layer), samples, input, output, output_gradient,
                           gradients);
    Round(samples * layer.inputs, gradients.input);
  }
  void Normalise(const Normalisation<double>& layer, const Stored<double>* input,
                 Stored<double>* output) override {
    Base::Normalise(layer, input, output);
    Round(layer.rows * layer.channels, output);
  }
  void NormaliseBackward(const Normalisation<double>& layer, bool of_batch,
                         const Stored<double>* input, const Stored<double>* output,
                         Stored<double>* output_gradient,
                         const LayerGradients<double>& gradients) override {
    Base::NormaliseBackward(layer, of_batch, input, output, output_gradient, gradients);
    Round(layer.rows * layer.channels, gradients.input);
  }
  void Add(Activation activation, int64_t count, const Stored<double>* a, const Stored<double>* b,
           Stored<double>* sum) override {
    Base::Add(activation, count, a, b, sum);
    Round(count, sum);
  }
  void Pool(Pooling pooling, const Window& window, int64_t samples, const Stored<double>* input,
            Stored<double>* output, int32_t* chosen) override {
    Base::Pool(pooling, window, samples, input, output, chosen);
    Round(samples * window.positions() * window.input.channels, output);
  }
  void PoolBackward(Pooling pooling, const Window& window, int64_t samples, const int32_t* chosen,
                    const Stored<double>* output_gradient,
                    Stored<double>* input_gradient) override {
    Base::PoolBackward(pooling, window, samples, chosen, output_gradient, input_gradient);
    Round(samples * window.input.size(), input_gradient);
  }
  void FindLoss(const RowLossRule& rule, int64_t rows, int64_t columns,
                const Stored<double>* outputs, const double* targets, double divisor, double* total,
                Stored<double>* gradient) override {
    Base::FindLoss(rule, rows, columns, outputs, targets, divisor, total, gradient);
    Round(rows * columns, gradient);
  }

 private:
  static void Round(int64_t count, Stored<double>* stored) {
    auto* const numbers = reinterpret_cast<double*>(stored);
    for (int64_t i = 0; numbers != nullptr && i < count; ++i) numbers[i] = Rounded(numbers[i]);
  }
  const double* RoundedWeights(int64_t count, const double* weights) {
    weights_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) weights_[i] = Rounded(weights[i]);
    return weights_.data();
  }
  Convolution<double> WithRoundedWeights(Convolution<double> layer) {
    layer.weights = RoundedWeights(layer.outputs * layer.window.size(), layer.weights);
    return layer;
  }
  Affine<double> WithRoundedKernel(Affine<double> layer) {
    layer.kernel = RoundedWeights(layer.inputs * layer.outputs, layer.kernel);
    return layer;
  }

  std::vector<double> weights_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_NN_ROUNDING_DEVICE_H_
