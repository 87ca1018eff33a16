// CpuDevice: convolutions, as matrix products of im2col rows.

#include <algorithm>
#include <cstring>
#include <vector>

#include "worker/nn/cpu/columns.h"
#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {
namespace {

// im2col rows are made in blocks of about this many bytes, which stay in the second-level cache.
constexpr int64_t kBlockBytes = 384 << 10;
// A block has at least this many rows; with fewer, the product's preparation of the weights
// takes too large a part of the time.
constexpr int64_t kBlockRows = 192;

// With at most this many rows, and with many outputs, threads split the weights instead of the
// samples.
constexpr int64_t kFewRows = 1024;

bool IsFew(const Window& window, int64_t samples, int64_t outputs) {
  const int64_t rows = samples * window.positions();
  return rows <= kFewRows && rows < 4 * outputs;
}

// Whether the im2col rows of an image are the image itself.
bool IsPointwise(const Window& window) {
  return window.height == 1 && window.width == 1 && window.stride == 1 && window.padding == 0;
}

template <typename T>
T* Sized(std::vector<T>& values, int64_t size) {
  if (static_cast<int64_t>(values.size()) < size) values.resize(size);
  return values.data();
}

// The lines of the output in a block.
template <typename T>
int64_t LinesAtATime(const Window& window) {
  const int64_t rows = std::max<int64_t>(
      kBlockRows, kBlockBytes / (window.size() * static_cast<int64_t>(sizeof(T))));
  return std::max<int64_t>(1, rows / window.output_width);
}

// Splits the output lines of samples `begin` to below `end` into blocks, which may span samples.
// Calls `block(first row, rows, lay_out)` for each; rows are counted from sample 0 on.
// `lay_out(function)` calls function(sample, first line, end of the lines, row in the block) for
// each sample in the block.
template <typename T, typename Block>
void ForEachBlock(const Window& window, int64_t begin, int64_t end, Block block) {
  const int64_t at_a_time = LinesAtATime<T>(window);
  const int64_t height = window.output_height;
  const int64_t last = end * height;
  for (int64_t line = begin * height; line < last; line += at_a_time) {
    const int64_t stop = std::min(last, line + at_a_time);
    block(line * window.output_width, (stop - line) * window.output_width, [&](auto function) {
      for (int64_t at = line; at < stop;) {
        const int64_t sample = at / height;
        const int64_t next = std::min(stop, (sample + 1) * height);
        function(sample, at - sample * height, next - sample * height,
                 (at - line) * window.output_width);
        at = next;
      }
    });
  }
}

}  // namespace

template <typename T>
const T* CpuDevice<T>::PackWeights(const Window& window, int64_t outputs, const T* weights) {
  const int64_t area = window.height * window.width;
  if (area == 1) return weights;
  const int64_t channels = window.input.channels;
  T* packed = Sized(packed_, outputs * window.size());
  For(outputs, window.size(), [&](int, int64_t begin, int64_t end) {
    for (int64_t output = begin; output < end; ++output) {
      const T* from = weights + output * window.size();
      T* to = packed + output * window.size();
      for (int64_t channel = 0; channel < channels; ++channel) {
        for (int64_t i = 0; i < area; ++i) to[i * channels + channel] = from[channel * area + i];
      }
    }
  });
  return packed;
}

template <typename T>
void CpuDevice<T>::UnpackWeights(const Window& window, int64_t outputs, const T* packed,
                                 T* weights) {
  const int64_t area = window.height * window.width;
  const int64_t channels = window.input.channels;
  For(outputs, window.size(), [&](int, int64_t begin, int64_t end) {
    for (int64_t output = begin; output < end; ++output) {
      const T* from = packed + output * window.size();
      T* to = weights + output * window.size();
      for (int64_t channel = 0; channel < channels; ++channel) {
        for (int64_t i = 0; i < area; ++i) to[channel * area + i] = from[i * channels + channel];
      }
    }
  });
}

template <typename T>
const T* CpuDevice<T>::AllRows(const Window& window, int64_t samples, const T* input) {
  if (IsPointwise(window)) return input;
  const int64_t per_sample = window.positions() * window.size();
  T* rows = Sized(rows_, samples * per_sample);
  For(samples, per_sample, [&](int, int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample) {
      Im2Col(window, input + sample * window.input.size(), 0, window.output_height,
             rows + sample * per_sample);
    }
  });
  return rows;
}

template <typename T>
void CpuDevice<T>::Convolve(const Convolution<T>& layer, int64_t samples, const T* input,
                            T* output) {
  const Window& window = layer.window;
  const int64_t outputs = layer.outputs;
  const T* packed = PackWeights(window, outputs, layer.weights);
  MatrixProduct<T> product;
  product.columns = outputs;
  product.inner = window.size();
  product.a_stride = window.size();
  product.b = packed;
  product.b_stride = window.size();
  product.transpose_b = true;
  product.c_stride = outputs;
  if (IsFew(window, samples, outputs)) {
    product.rows = samples * window.positions();
    product.a = AllRows(window, samples, input);
    product.c = output;
    MultiplyMatrices(product);
    For(product.rows, outputs, [&](int, int64_t begin, int64_t end) {
      AddBias(end - begin, outputs, layer.bias, layer.activation, output + begin * outputs);
    });
    return;
  }
  For(samples, window.positions() * window.size() * outputs / 4,
      [&](int part, int64_t first, int64_t last) {
        MatrixProduct<T> own = product;
        ForEachBlock<T>(window, first, last, [&](int64_t row, int64_t rows, auto lay_out) {
          own.rows = rows;
          own.c = output + row * outputs;
          if (IsPointwise(window)) {
            own.a = input + row * window.size();
          } else {
            T* laid_out = Sized(part_rows_[part], rows * window.size());
            lay_out([&](int64_t sample, int64_t begin, int64_t end, int64_t at) {
              Im2Col(window, input + sample * window.input.size(), begin, end,
                     laid_out + at * window.size());
            });
            own.a = laid_out;
          }
          kernels_.multiply(own);
          AddBias(rows, outputs, layer.bias, layer.activation, own.c);
        });
      });
}

template <typename T>
void CpuDevice<T>::ConvolveBackward(const Convolution<T>& layer, int64_t samples, const T* input,
                                    const T* output, T* output_gradient,
                                    const LayerGradients<T>& gradients) {
  const Window& window = layer.window;
  const int64_t outputs = layer.outputs;
  T* const weights_gradient = gradients.weights;
  T* const input_gradient = gradients.input;
  AddBiasBackward(samples * window.positions(), outputs, layer.activation, output, output_gradient,
                  gradients.bias);
  const int64_t size = window.size();
  const bool pointwise = IsPointwise(window);
  const T* packed =
      input_gradient == nullptr ? nullptr : PackWeights(window, outputs, layer.weights);
  const bool in_order = window.height * window.width == 1;
  T* packed_gradient = in_order ? weights_gradient : Sized(packed_gradient_, outputs * size);

  // The gradient by the weights is output_gradient^T rows; that by the rows is output_gradient
  // weights.
  MatrixProduct<T> by_weights;
  by_weights.rows = outputs;
  by_weights.columns = size;
  by_weights.a_stride = outputs;
  by_weights.transpose_a = true;
  by_weights.b_stride = size;
  by_weights.c_stride = size;
  MatrixProduct<T> by_rows;
  by_rows.columns = size;
  by_rows.inner = outputs;
  by_rows.a_stride = outputs;
  by_rows.b = packed;
  by_rows.b_stride = size;
  by_rows.c_stride = size;

  if (input_gradient != nullptr && !pointwise) {
    std::memset(input_gradient, 0, samples * window.input.size() * sizeof(T));
  }
  if (IsFew(window, samples, outputs)) {
    const int64_t rows = samples * window.positions();
    by_weights.inner = rows;
    by_weights.a = output_gradient;
    by_weights.b = AllRows(window, samples, input);
    by_weights.c = packed_gradient;
    MultiplyMatrices(by_weights);
    if (!in_order) UnpackWeights(window, outputs, packed_gradient, weights_gradient);
    if (input_gradient == nullptr) return;
    by_rows.rows = rows;
    by_rows.a = output_gradient;
    by_rows.c = pointwise ? input_gradient : Sized(row_gradients_, rows * size);
    MultiplyMatrices(by_rows);
    if (pointwise) return;
    For(samples, window.positions() * size, [&](int, int64_t begin, int64_t end) {
      for (int64_t sample = begin; sample < end; ++sample) {
        Col2Im(window, by_rows.c + sample * window.positions() * size, 0, window.output_height,
               input_gradient + sample * window.input.size());
      }
    });
    return;
  }

  for (std::vector<T>& part : part_gradients_) part.clear();
  For(samples, window.positions() * size * outputs / 2, [&](int part, int64_t first, int64_t last) {
    MatrixProduct<T> weights_part = by_weights;
    MatrixProduct<T> rows_part = by_rows;
    part_gradients_[part].assign(outputs * size, T{0});
    weights_part.c = part_gradients_[part].data();
    weights_part.accumulate = true;
    ForEachBlock<T>(window, first, last, [&](int64_t row, int64_t rows, auto lay_out) {
      weights_part.inner = rows;
      weights_part.a = rows_part.a = output_gradient + row * outputs;
      rows_part.rows = rows;
      if (pointwise) {
        weights_part.b = input + row * size;
        kernels_.multiply(weights_part);
        if (input_gradient == nullptr) return;
        rows_part.c = input_gradient + row * size;
        kernels_.multiply(rows_part);
        return;
      }
      T* laid_out = Sized(part_rows_[part], rows * size);
      lay_out([&](int64_t sample, int64_t begin, int64_t end, int64_t at) {
        Im2Col(window, input + sample * window.input.size(), begin, end, laid_out + at * size);
      });
      weights_part.b = laid_out;
      kernels_.multiply(weights_part);
      if (input_gradient == nullptr) return;
      // The rows are no longer needed: their memory is reused for their gradients.
      rows_part.c = laid_out;
      kernels_.multiply(rows_part);
      lay_out([&](int64_t sample, int64_t begin, int64_t end, int64_t at) {
        Col2Im(window, laid_out + at * size, begin, end,
               input_gradient + sample * window.input.size());
      });
    });
  });
  // Add in the order of the parts, so that the bits do not depend on the threads' timing.
  std::fill(packed_gradient, packed_gradient + outputs * size, T{0});
  for (const std::vector<T>& part : part_gradients_) {
    if (!part.empty()) {
      Add(Activation::kIdentity, outputs * size, part.data(), packed_gradient, packed_gradient);
    }
  }
  if (!in_order) UnpackWeights(window, outputs, packed_gradient, weights_gradient);
}

// Instantiates the members that this file defines.
#define SYNCGRADS_INSTANTIATE(T)                                                                   \
  template const T* CpuDevice<T>::PackWeights(const Window&, int64_t, const T*);                   \
  template void CpuDevice<T>::UnpackWeights(const Window&, int64_t, const T*, T*);                 \
  template const T* CpuDevice<T>::AllRows(const Window&, int64_t, const T*);                       \
  template void CpuDevice<T>::Convolve(const Convolution<T>&, int64_t, const T*, T*);              \
  template void CpuDevice<T>::ConvolveBackward(const Convolution<T>&, int64_t, const T*, const T*, \
                                               T*, const LayerGradients<T>&);
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
