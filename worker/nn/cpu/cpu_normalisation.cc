// CpuDevice: batch normalisation.

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {

// Each thread finds the moments of its rows, which are then combined in the order of the rows
// (Chan, Golub and LeVeque 1983).
template <typename T>
void CpuDevice<T>::FindStatistics(int64_t rows, int64_t channels, const Stored<T>* stored_input,
                                  const BatchStatistics<T>& statistics) {
  const T* const input = Plain(stored_input);
  std::vector<int64_t> counts(part_sums_.size());
  ForParts(rows, 2 * channels, [&](int part, int64_t begin, int64_t end) {
    counts[part] = end - begin;
    part_sums_[part].resize(2 * channels);
    double* const mean = part_sums_[part].data();
    kernels_.find_moments(end - begin, channels, input + begin * channels, mean, mean + channels);
  });
  std::vector<double> mean(channels), squares(channels);
  int64_t before = 0;
  for (size_t part = 0; part < counts.size() && counts[part] > 0; ++part) {
    const double share =
        static_cast<double>(counts[part]) / static_cast<double>(before + counts[part]);
    const double weight = static_cast<double>(before) * share;
    for (int64_t c = 0; c < channels; ++c) {
      const double difference = part_sums_[part][c] - mean[c];
      mean[c] += difference * share;
      squares[c] += part_sums_[part][channels + c] + difference * difference * weight;
    }
    before += counts[part];
  }
  const auto count = static_cast<double>(rows);
  for (int64_t c = 0; c < channels; ++c) {
    statistics.mean[c] = static_cast<T>(mean[c]);
    statistics.variance[c] = static_cast<T>(squares[c] / count);
  }
  if (statistics.running_mean == nullptr) return;
  // One number has no unbiased variance; the biased one, 0, is used.
  const T unbiased = rows > 1 ? static_cast<T>(rows) / static_cast<T>(rows - 1) : T{1};
  const T momentum = static_cast<T>(statistics.momentum);
  T* const running_mean = statistics.running_mean;
  T* const running_variance = statistics.running_variance;
  for (int64_t c = 0; c < channels; ++c) {
    running_mean[c] += momentum * (statistics.mean[c] - running_mean[c]);
    running_variance[c] += momentum * (unbiased * statistics.variance[c] - running_variance[c]);
  }
}

template <typename T>
void CpuDevice<T>::Normalise(const Normalisation<T>& layer, const Stored<T>* stored_input,
                             Stored<T>* stored_output) {
  const T* const input = Plain(stored_input);
  T* const output = Plain(stored_output);
  const T* const residual = Plain(layer.residual);
  const int64_t channels = layer.channels;
  std::vector<T> factor(channels), addend(channels);
  for (int64_t c = 0; c < channels; ++c) {
    factor[c] = static_cast<T>(layer.scale[c] / std::sqrt(layer.variance[c] + layer.epsilon));
    addend[c] = layer.shift[c] - layer.mean[c] * factor[c];
  }
  const bool relu = layer.activation == Activation::kRelu;
  For(layer.rows, channels, [&](int, int64_t begin, int64_t end) {
    const int64_t first = begin * channels;
    kernels_.normalise(end - begin, channels, input + first, factor.data(), addend.data(),
                       residual == nullptr ? nullptr : residual + first, relu, output + first);
    if (!relu) syncgrads::Activate(layer.activation, (end - begin) * channels, output + first);
  });
}

// Ioffe and Szegedy, "Batch normalization", 2015: with x' = (x - mean) / deviation
// and n rows, dx = scale / deviation * (dy - sum(dy) / n - x' sum(dy x') / n).
template <typename T>
void CpuDevice<T>::NormaliseBackward(const Normalisation<T>& layer, bool of_batch,
                                     const Stored<T>* stored_input, const Stored<T>* stored_output,
                                     Stored<T>* stored_output_gradient,
                                     const LayerGradients<T>& gradients) {
  const T* const input = Plain(stored_input);
  const T* const output = Plain(stored_output);
  T* const output_gradient = Plain(stored_output_gradient);
  const int64_t channels = layer.channels;
  const bool relu = layer.activation == Activation::kRelu;
  std::vector<double> sums(2 * channels);
  double* const products = sums.data() + channels;
  SumColumns(
      layer.rows, 2 * channels,
      [&](int64_t begin, int64_t end, double* part) {
        const int64_t first = begin * channels;
        if (!relu) {
          syncgrads::MultiplyByDerivative(layer.activation, (end - begin) * channels,
                                          output + first, output_gradient + first);
        }
        kernels_.sum_gradients(end - begin, channels, relu ? output + first : nullptr,
                               input + first, layer.mean, output_gradient + first, part,
                               part + channels);
      },
      sums.data());
  std::vector<T> gradient_factor(channels), input_factor(channels), addend(channels);
  const auto count = static_cast<double>(layer.rows);
  for (int64_t c = 0; c < channels; ++c) {
    const double inverse = 1 / std::sqrt(layer.variance[c] + layer.epsilon);
    gradients.weights[c] = static_cast<T>(products[c] * inverse);
    gradients.bias[c] = static_cast<T>(sums[c]);
    const double factor = layer.scale[c] * inverse;
    gradient_factor[c] = static_cast<T>(factor);
    if (!of_batch) continue;
    const double slope = -factor * inverse * inverse * products[c] / count;
    input_factor[c] = static_cast<T>(slope);
    addend[c] = static_cast<T>(-factor * sums[c] / count - slope * layer.mean[c]);
  }
  if (gradients.input == nullptr) return;
  For(layer.rows, 2 * channels, [&](int, int64_t begin, int64_t end) {
    const int64_t first = begin * channels;
    kernels_.combine_rows(end - begin, channels, output_gradient + first, gradient_factor.data(),
                          input + first, input_factor.data(), addend.data(),
                          Plain(gradients.input) + first);
  });
}

// Instantiates the members that this file defines.
#define SYNCGRADS_INSTANTIATE(T)                                                                 \
  template void CpuDevice<T>::FindStatistics(int64_t, int64_t, const Stored<T>*,                 \
                                             const BatchStatistics<T>&);                         \
  template void CpuDevice<T>::Normalise(const Normalisation<T>&, const Stored<T>*, Stored<T>*);  \
  template void CpuDevice<T>::NormaliseBackward(const Normalisation<T>&, bool, const Stored<T>*, \
                                                const Stored<T>*, Stored<T>*,                    \
                                                const LayerGradients<T>&);
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
