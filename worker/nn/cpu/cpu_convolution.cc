// CpuDevice: convolutions, as matrix products of im2col rows.

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
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
const T* CpuDevice<T>::PackWeights(const Convolution<T>& layer) {
  const Window& window = layer.window;
  const int64_t area = window.height * window.width;
  if (area == 1) return layer.weights;
  const int64_t channels = window.input.channels;
  DeviceMatrix<T>& matrix = layer.packed == nullptr ? packed_ : *layer.packed;
  matrix.Resize(layer.outputs, window.size());
  T* const packed = Plain(matrix.data());
  For(layer.outputs, window.size(), [&](int, int64_t begin, int64_t end) {
    for (int64_t output = begin; output < end; ++output) {
      const T* from = layer.weights + output * window.size();
      T* to = packed + output * window.size();
      for (int64_t channel = 0; channel < channels; ++channel) {
        for (int64_t i = 0; i < area; ++i) to[i * channels + channel] = from[channel * area + i];
      }
    }
  });
  return packed;
}

template <typename T>
void CpuDevice<T>::UnpackWeights(const Window& window, int64_t outputs, absl::Span<T* const> parts,
                                 T* weights) {
  const int64_t area = window.height * window.width;
  const int64_t channels = window.input.channels;
  const int64_t size = window.size();
  For(outputs, size * static_cast<int64_t>(parts.size()), [&](int, int64_t begin, int64_t end) {
    for (int64_t output = begin; output < end; ++output) {
      T* const from = parts[0] + output * size;
      for (const T* part : parts.subspan(1)) {
        kernels_.add(size, from, part + output * size, /*relu=*/false, from);
      }
      T* to = weights + output * size;
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
void CpuDevice<T>::Convolve(const Convolution<T>& layer, int64_t samples,
                            const Stored<T>* stored_input, Stored<T>* stored_output) {
  const T* const input = Plain(stored_input);
  T* const output = Plain(stored_output);
  const Window& window = layer.window;
  const int64_t outputs = layer.outputs;
  MatrixProduct<T> product;
  product.columns = outputs;
  product.inner = window.size();
  product.a_stride = window.size();
  product.b = PackWeights(layer);
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
      [&](int thread, int64_t first, int64_t last) {
        MatrixProduct<T> own = product;
        ForEachBlock<T>(window, first, last, [&](int64_t row, int64_t rows, auto lay_out) {
          own.rows = rows;
          own.c = output + row * outputs;
          if (IsPointwise(window)) {
            own.a = input + row * window.size();
          } else {
            T* laid_out = Sized(thread_rows_[thread], rows * window.size());
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
void CpuDevice<T>::ConvolveBackward(const Convolution<T>& layer, int64_t samples,
                                    const Stored<T>* stored_input, const Stored<T>* stored_output,
                                    Stored<T>* stored_output_gradient,
                                    const LayerGradients<T>& gradients) {
  const T* const input = Plain(stored_input);
  const T* const output = Plain(stored_output);
  T* const output_gradient = Plain(stored_output_gradient);
  const Window& window = layer.window;
  const int64_t outputs = layer.outputs;
  T* const weights_gradient = gradients.weights;
  T* const input_gradient = Plain(gradients.input);
  AddBiasBackward(samples * window.positions(), outputs, layer.activation, output, output_gradient,
                  gradients.bias);
  const int64_t size = window.size();
  const bool pointwise = IsPointwise(window);

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
  const bool is_packed = layer.packed != nullptr && layer.packed->size() > 0;
  if (input_gradient != nullptr)
    by_rows.b = is_packed ? Plain(layer.packed->data()) : PackWeights(layer);
  by_rows.b_stride = size;
  by_rows.c_stride = size;

  if (IsFew(window, samples, outputs)) {
    const int64_t rows = samples * window.positions();
    const bool in_order = window.height * window.width == 1;
    by_weights.inner = rows;
    by_weights.a = output_gradient;
    by_weights.b = AllRows(window, samples, input);
    by_weights.c = in_order ? weights_gradient : Sized(part_gradients_[0], outputs * size);
    MultiplyMatrices(by_weights);
    if (!in_order) UnpackWeights(window, outputs, {by_weights.c}, weights_gradient);
    if (input_gradient == nullptr) return;
    by_rows.rows = rows;
    by_rows.a = output_gradient;
    by_rows.c = pointwise ? input_gradient : Sized(row_gradients_, rows * size);
    MultiplyMatrices(by_rows);
    if (pointwise) return;
    For(samples, window.positions() * size, [&](int, int64_t begin, int64_t end) {
      for (int64_t sample = begin; sample < end; ++sample) {
        T* const image = input_gradient + sample * window.input.size();
        std::fill(image, image + window.input.size(), T{0});
        Col2Im(window, by_rows.c + sample * window.positions() * size, 0, window.output_height,
               image);
      }
    });
    return;
  }

  // Each part has its own gradient by the weights.
  std::vector<T*> parts(part_gradients_.size());
  const int64_t operations = window.positions() * size * outputs / 2;
  ForParts(samples, operations, [&](int part, int64_t first, int64_t last) {
    MatrixProduct<T> weights_part = by_weights;
    MatrixProduct<T> rows_part = by_rows;
    weights_part.c = parts[part] = Sized(part_gradients_[part], outputs * size);
    ForEachBlock<T>(window, first, last, [&](int64_t row, int64_t rows, auto lay_out) {
      weights_part.inner = rows;
      weights_part.accumulate = row > first * window.positions();
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
      T* laid_out = Sized(thread_rows_[part], rows * size);
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
        T* const image = input_gradient + sample * window.input.size();
        // The lines of a sample come in order. Its image is still in the cache for the next ones.
        if (begin == 0) std::fill(image, image + window.input.size(), T{0});
        Col2Im(window, laid_out + at * size, begin, end, image);
      });
    });
  });
  // The parts are added in their order, so the bits do not depend on the threads' timing.
  parts.erase(std::remove(parts.begin(), parts.end(), nullptr), parts.end());
  UnpackWeights(window, outputs, absl::MakeSpan(parts), weights_gradient);
}

// Instantiates the members that this file defines.
#define SYNCGRADS_INSTANTIATE(T)                                                                 \
  template const T* CpuDevice<T>::PackWeights(const Convolution<T>&);                            \
  template void CpuDevice<T>::UnpackWeights(const Window&, int64_t, absl::Span<T* const>, T*);   \
  template const T* CpuDevice<T>::AllRows(const Window&, int64_t, const T*);                     \
  template void CpuDevice<T>::Convolve(const Convolution<T>&, int64_t, const Stored<T>*,         \
                                       Stored<T>*);                                              \
  template void CpuDevice<T>::ConvolveBackward(const Convolution<T>&, int64_t, const Stored<T>*, \
                                               const Stored<T>*, Stored<T>*,                     \
                                               const LayerGradients<T>&);
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
