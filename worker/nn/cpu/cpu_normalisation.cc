// CpuDevice: batch normalisation.

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {

template <typename T>
void CpuDevice<T>::FindMoments(int64_t rows, int64_t channels, T epsilon, const T* input,
                               const BatchMoments<T>& moments, T* variance) {
  std::vector<double> sums(channels);
  SumColumns(
      rows, channels,
      [&](int64_t begin, int64_t end, double* part) {
        kernels_.sum_rows(end - begin, channels, input + begin * channels, part);
      },
      sums.data());
  const double count = static_cast<double>(rows);
  for (int64_t c = 0; c < channels; ++c) moments.mean[c] = static_cast<T>(sums[c] / count);
  SumColumns(
      rows, channels,
      [&](int64_t begin, int64_t end, double* part) {
        kernels_.sum_squares(end - begin, channels, input + begin * channels, moments.mean, part);
      },
      sums.data());
  for (int64_t c = 0; c < channels; ++c) {
    variance[c] = static_cast<T>(sums[c] / count);
    moments.inverse_deviation[c] =
        static_cast<T>(1 / std::sqrt(sums[c] / count + static_cast<double>(epsilon)));
  }
}

template <typename T>
void CpuDevice<T>::InvertDeviations(int64_t channels, T epsilon, const T* variance,
                                    T* inverse_deviation) {
  for (int64_t c = 0; c < channels; ++c) {
    inverse_deviation[c] = 1 / std::sqrt(variance[c] + epsilon);
  }
}

template <typename T>
void CpuDevice<T>::Normalise(int64_t rows, int64_t channels, const BatchMoments<T>& moments,
                             const T* scale, const T* shift, const T* input, T* output) {
  std::vector<T> factor(channels), addend(channels);
  for (int64_t c = 0; c < channels; ++c) {
    factor[c] = scale[c] * moments.inverse_deviation[c];
    addend[c] = shift[c] - moments.mean[c] * factor[c];
  }
  For(rows, channels, [&](int, int64_t begin, int64_t end) {
    kernels_.scale_rows(end - begin, channels, input + begin * channels, factor.data(),
                        addend.data(), output + begin * channels);
  });
}

// Ioffe and Szegedy, "Batch normalization", 2015: with x' = (x - mean) / deviation
// and n rows, dx = scale / deviation * (dy - sum(dy) / n - x' sum(dy x') / n).
template <typename T>
void CpuDevice<T>::NormaliseBackward(int64_t rows, int64_t channels, const BatchMoments<T>& moments,
                                     bool of_batch, const T* scale, const T* input,
                                     const T* output_gradient, T* scale_gradient, T* shift_gradient,
                                     T* input_gradient) {
  std::vector<double> sums(channels), products(channels);
  SumColumns(
      rows, channels,
      [&](int64_t begin, int64_t end, double* part) {
        kernels_.sum_rows(end - begin, channels, output_gradient + begin * channels, part);
      },
      sums.data());
  SumColumns(
      rows, channels,
      [&](int64_t begin, int64_t end, double* part) {
        kernels_.sum_products(end - begin, channels, output_gradient + begin * channels,
                              input + begin * channels, moments.mean, part);
      },
      products.data());
  for (int64_t c = 0; c < channels; ++c) {
    scale_gradient[c] = static_cast<T>(products[c] * moments.inverse_deviation[c]);
    shift_gradient[c] = static_cast<T>(sums[c]);
  }
  if (input_gradient == nullptr) return;
  std::vector<T> gradient_factor(channels), input_factor(channels), addend(channels);
  const double count = static_cast<double>(rows);
  for (int64_t c = 0; c < channels; ++c) {
    const double inverse = moments.inverse_deviation[c];
    const double factor = scale[c] * inverse;
    gradient_factor[c] = static_cast<T>(factor);
    if (!of_batch) continue;
    const double slope = -factor * inverse * inverse * products[c] / count;
    input_factor[c] = static_cast<T>(slope);
    addend[c] = static_cast<T>(-factor * sums[c] / count - slope * moments.mean[c]);
  }
  For(rows, 2 * channels, [&](int, int64_t begin, int64_t end) {
    kernels_.combine_rows(end - begin, channels, output_gradient + begin * channels,
                          gradient_factor.data(), input + begin * channels, input_factor.data(),
                          addend.data(), input_gradient + begin * channels);
  });
}

// Instantiates the members that this file defines.
#define SYNCGRADS_INSTANTIATE(T)                                                                 \
  template void CpuDevice<T>::FindMoments(int64_t, int64_t, T, const T*, const BatchMoments<T>&, \
                                          T*);                                                   \
  template void CpuDevice<T>::InvertDeviations(int64_t, T, const T*, T*);                        \
  template void CpuDevice<T>::Normalise(int64_t, int64_t, const BatchMoments<T>&, const T*,      \
                                        const T*, const T*, T*);                                 \
  template void CpuDevice<T>::NormaliseBackward(int64_t, int64_t, const BatchMoments<T>&, bool,  \
                                                const T*, const T*, const T*, T*, T*, T*);
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
