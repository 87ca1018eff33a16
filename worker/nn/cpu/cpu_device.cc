#include "worker/nn/cpu/cpu_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker/base/split_mix.h"
#include "worker/nn/cpu/columns.h"

namespace syncgrads {
namespace {

// Below this, waking another thread takes longer than it saves.
constexpr int64_t kLeastOperations = 40000;

// Windows are laid out for a matrix product in blocks of about so many bytes, which
// stay in the second-level cache.
constexpr int64_t kBlockBytes = 384 << 10;
// ... but of at least so many rows, over which the product's own preparation of
// the weights pays.
constexpr int64_t kBlockRows = 192;

// With few windows and many weights, threads share out the weights instead of the
// samples.
constexpr int64_t kFewRows = 1024;

bool IsFew(const Window& window, int64_t samples, int64_t outputs) {
  const int64_t rows = samples * window.positions();
  return rows <= kFewRows && rows < 4 * outputs;
}

// Whether the windows of an image are the image.
bool IsPointwise(const Window& window) {
  return window.height == 1 && window.width == 1 && window.stride == 1 && window.padding == 0;
}

template <typename T>
T* Sized(std::vector<T>& values, int64_t size) {
  if (static_cast<int64_t>(values.size()) < size) values.resize(size);
  return values.data();
}

// Lines of the output that make a block.
template <typename T>
int64_t LinesAtATime(const Window& window) {
  const int64_t rows = std::max<int64_t>(
      kBlockRows, kBlockBytes / (window.size() * static_cast<int64_t>(sizeof(T))));
  return std::max<int64_t>(1, rows / window.output_width);
}

// Walks through the output lines of samples `begin` to below `end` in blocks that
// may span samples: `block(first row of the range, rows, lay out)`, where
// `lay_out(function)` calls function(sample, first line, last line, row in block).
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
CpuDevice<T>::CpuDevice(int threads, const CpuKernels<T>& kernels)
    : pool_(threads),
      kernels_(kernels),
      part_rows_(threads),
      part_gradients_(threads),
      part_sums_(threads) {}

template <typename T>
void CpuDevice<T>::For(int64_t items, int64_t operations_each,
                       absl::FunctionRef<void(int, int64_t, int64_t)> range) {
  const int64_t worthwhile = items * operations_each / kLeastOperations;
  const int64_t parts =
      std::max<int64_t>(1, std::min({static_cast<int64_t>(pool_.threads()), items, worthwhile}));
  pool_.Run(static_cast<int>(parts),
            [&](int part) { range(part, items * part / parts, items * (part + 1) / parts); });
}

template <typename T>
void CpuDevice<T>::Multiply(const MatrixProduct<T>& product) {
  const bool by_rows = product.rows >= product.columns;
  const int64_t items = by_rows ? product.rows : product.columns;
  For(items, (by_rows ? product.columns : product.rows) * product.inner / 4 + 1,
      [&](int, int64_t begin, int64_t end) {
        MatrixProduct<T> part = product;
        if (by_rows) {
          part.rows = end - begin;
          part.a += product.transpose_a ? begin : begin * product.a_stride;
          part.c += begin * product.c_stride;
        } else {
          part.columns = end - begin;
          part.b += product.transpose_b ? begin * product.b_stride : begin;
          part.c += begin;
        }
        kernels_.multiply(part);
      });
}

template <typename T>
void CpuDevice<T>::AddToRows(int64_t rows, int64_t columns, const T* addend, T* values) {
  For(rows, columns, [&](int, int64_t begin, int64_t end) {
    kernels_.add_to_rows(end - begin, columns, addend, values + begin * columns);
  });
}

template <typename T>
void CpuDevice<T>::SumColumns(int64_t rows, int64_t columns,
                              absl::FunctionRef<void(int64_t, int64_t, double*)> sum,
                              double* sums) {
  for (std::vector<double>& part : part_sums_) part.clear();
  For(rows, columns, [&](int part, int64_t begin, int64_t end) {
    part_sums_[part].assign(columns, 0.0);
    sum(begin, end, part_sums_[part].data());
  });
  std::fill(sums, sums + columns, 0.0);
  for (const std::vector<double>& part : part_sums_) {
    for (size_t i = 0; i < part.size(); ++i) sums[i] += part[i];
  }
}

template <typename T>
void CpuDevice<T>::SumRows(int64_t rows, int64_t columns, const T* values, T* sums) {
  std::vector<double> totals(columns);
  SumColumns(
      rows, columns,
      [&](int64_t begin, int64_t end, double* part) {
        kernels_.sum_rows(end - begin, columns, values + begin * columns, part);
      },
      totals.data());
  for (int64_t i = 0; i < columns; ++i) sums[i] = static_cast<T>(totals[i]);
}

template <typename T>
void CpuDevice<T>::Add(int64_t count, const T* a, const T* b, T* sum) {
  For(count, 1, [&](int, int64_t begin, int64_t end) {
    kernels_.add(end - begin, a + begin, b + begin, sum + begin);
  });
}

template <typename T>
void CpuDevice<T>::MultiplyEach(int64_t count, const T* a, const T* b, T* product) {
  For(count, 1, [&](int, int64_t begin, int64_t end) {
    kernels_.multiply_each(end - begin, a + begin, b + begin, product + begin);
  });
}

template <typename T>
void CpuDevice<T>::AddScaled(int64_t count, T factor, const T* a, T* sum) {
  For(count, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum[i] += factor * a[i];
  });
}

template <typename T>
void CpuDevice<T>::MoveTowards(int64_t count, T step, T factor, const T* target, T* values) {
  for (int64_t i = 0; i < count; ++i) values[i] += step * (factor * target[i] - values[i]);
}

template <typename T>
void CpuDevice<T>::Activate(Activation activation, int64_t count, T* values) {
  if (activation == Activation::kIdentity) return;
  For(count, activation == Activation::kRelu ? 1 : 20, [&](int, int64_t begin, int64_t end) {
    if (activation == Activation::kRelu) {
      kernels_.relu(end - begin, values + begin);
    } else {
      syncgrads::Activate(activation, end - begin, values + begin);
    }
  });
}

template <typename T>
void CpuDevice<T>::MultiplyByDerivative(Activation activation, int64_t count, const T* outputs,
                                        T* gradient) {
  if (activation == Activation::kIdentity) return;
  For(count, 1, [&](int, int64_t begin, int64_t end) {
    if (activation == Activation::kRelu) {
      kernels_.relu_backward(end - begin, outputs + begin, gradient + begin);
    } else {
      syncgrads::MultiplyByDerivative(activation, end - begin, outputs + begin, gradient + begin);
    }
  });
}

template <typename T>
void CpuDevice<T>::DrawDropout(uint64_t key, double rate, int64_t count, T* factors) {
  const T kept = static_cast<T>(1 / (1 - rate));
  For(count, 4, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      factors[i] = UniformAt(key, static_cast<uint64_t>(i)) < rate ? T{0} : kept;
    }
  });
}

template <typename T>
void CpuDevice<T>::ScaleToRanges(int64_t rows, int64_t columns, const T* minimum, const T* maximum,
                                 const T* input, T* output) {
  for (int64_t column = 0; column < columns; ++column) {
    const T width = maximum[column] - minimum[column];
    const T scale = width > 0 ? 2 / width : T{0};
    const T offset = scale > 0 ? T{-1} : T{0};
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t i = row * columns + column;
      output[i] = (input[i] - minimum[column]) * scale + offset;
    }
  }
}

template <typename T>
void CpuDevice<T>::ScaleToRangesBackward(int64_t rows, int64_t columns, const T* minimum,
                                         const T* maximum, const T* output_gradient,
                                         T* input_gradient) {
  for (int64_t column = 0; column < columns; ++column) {
    const T width = maximum[column] - minimum[column];
    const T scale = width > 0 ? 2 / width : T{0};
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t i = row * columns + column;
      input_gradient[i] = output_gradient[i] * scale;
    }
  }
}

template <typename T>
void CpuDevice<T>::FindLosses(LossKind kind, int64_t rows, int64_t columns, const T* outputs,
                              const double* targets, double divisor, double* losses, T* gradient) {
  For(rows, 40 * columns, [&](int, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* output = outputs + row * columns;
      losses[row] = RowLoss(kind, columns, output, targets[row]);
      RowLossGradient(kind, columns, output, targets[row], divisor, gradient + row * columns);
    }
  });
}

template <typename T>
void CpuDevice<T>::AddUp(int64_t count, double factor, const double* values, double* sum) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += values[i];
  *sum += factor * total;
}

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
      WindowsToRows(window, input + sample * window.input.size(), 0, window.output_height,
                    rows + sample * per_sample);
    }
  });
  return rows;
}

template <typename T>
void CpuDevice<T>::Convolve(const Window& window, int64_t samples, int64_t outputs, const T* input,
                            const T* weights, T* output) {
  const T* packed = PackWeights(window, outputs, weights);
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
    Multiply(product);
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
              WindowsToRows(window, input + sample * window.input.size(), begin, end,
                            laid_out + at * window.size());
            });
            own.a = laid_out;
          }
          kernels_.multiply(own);
        });
      });
}

template <typename T>
void CpuDevice<T>::ConvolveBackward(const Window& window, int64_t samples, int64_t outputs,
                                    const T* input, const T* weights, const T* output_gradient,
                                    T* weights_gradient, T* input_gradient) {
  const int64_t size = window.size();
  const bool pointwise = IsPointwise(window);
  const T* packed = input_gradient == nullptr ? nullptr : PackWeights(window, outputs, weights);
  const bool in_order = window.height * window.width == 1;
  T* packed_gradient = in_order ? weights_gradient : Sized(packed_gradient_, outputs * size);

  // By the weights: output_gradient^T rows. By the rows: output_gradient weights.
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
    Multiply(by_weights);
    if (!in_order) UnpackWeights(window, outputs, packed_gradient, weights_gradient);
    if (input_gradient == nullptr) return;
    by_rows.rows = rows;
    by_rows.a = output_gradient;
    by_rows.c = pointwise ? input_gradient : Sized(row_gradients_, rows * size);
    Multiply(by_rows);
    if (pointwise) return;
    For(samples, window.positions() * size, [&](int, int64_t begin, int64_t end) {
      for (int64_t sample = begin; sample < end; ++sample) {
        AddRowsToWindows(window, by_rows.c + sample * window.positions() * size, 0,
                         window.output_height, input_gradient + sample * window.input.size());
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
        WindowsToRows(window, input + sample * window.input.size(), begin, end,
                      laid_out + at * size);
      });
      weights_part.b = laid_out;
      kernels_.multiply(weights_part);
      if (input_gradient == nullptr) return;
      // The windows have been used: their place is free for their gradients.
      rows_part.c = laid_out;
      kernels_.multiply(rows_part);
      lay_out([&](int64_t sample, int64_t begin, int64_t end, int64_t at) {
        AddRowsToWindows(window, laid_out + at * size, begin, end,
                         input_gradient + sample * window.input.size());
      });
    });
  });
  // In the order of the parts, so that the bits do not depend on who was first.
  std::fill(packed_gradient, packed_gradient + outputs * size, T{0});
  for (const std::vector<T>& part : part_gradients_) {
    if (!part.empty()) Add(outputs * size, part.data(), packed_gradient, packed_gradient);
  }
  if (!in_order) UnpackWeights(window, outputs, packed_gradient, weights_gradient);
}

template <typename T>
void CpuDevice<T>::MaxPool(const Window& window, int64_t samples, const T* input, T* output,
                           int32_t* chosen) {
  const int64_t channels = window.input.channels;
  const int64_t per_sample = window.positions() * channels;
  For(samples, per_sample * window.height * window.width, [&](int, int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      const T* image = input + sample * window.input.size();
      T* to = output + sample * per_sample;
      int32_t* where = chosen + sample * per_sample;
      for (int64_t oy = 0; oy < window.output_height; ++oy) {
        const int64_t top = oy * window.stride - window.padding;
        const int64_t y_begin = std::max<int64_t>(top, 0);
        const int64_t y_end = std::min(top + window.height, window.input.height);
        for (int64_t ox = 0; ox < window.output_width; ++ox, to += channels, where += channels) {
          const int64_t left = ox * window.stride - window.padding;
          const int64_t x_begin = std::max<int64_t>(left, 0);
          const int64_t x_end = std::min(left + window.width, window.input.width);
          bool is_first = true;
          for (int64_t y = y_begin; y < y_end; ++y) {
            for (int64_t x = x_begin; x < x_end; ++x) {
              const int64_t at = (y * window.input.width + x) * channels;
              const T* pixel = image + at;
              for (int64_t c = 0; c < channels; ++c) {
                const bool larger = is_first || pixel[c] > to[c] || std::isnan(pixel[c]);
                to[c] = larger ? pixel[c] : to[c];
                where[c] = larger ? static_cast<int32_t>(at + c) : where[c];
              }
              is_first = false;
            }
          }
        }
      }
    }
  });
}

template <typename T>
void CpuDevice<T>::MaxPoolBackward(const Window& window, int64_t samples, const int32_t* chosen,
                                   const T* output_gradient, T* input_gradient) {
  const int64_t per_sample = window.positions() * window.input.channels;
  For(samples, per_sample + window.input.size(), [&](int, int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      T* image = input_gradient + sample * window.input.size();
      std::memset(image, 0, window.input.size() * sizeof(T));
      for (int64_t i = sample * per_sample; i < (sample + 1) * per_sample; ++i) {
        image[chosen[i]] += output_gradient[i];
      }
    }
  });
}

template <typename T>
void CpuDevice<T>::AveragePool(const Window& window, int64_t samples, const T* input, T* output) {
  const int64_t channels = window.input.channels;
  const int64_t per_sample = window.positions() * channels;
  const T share = T{1} / static_cast<T>(window.height * window.width);
  For(samples, per_sample * window.height * window.width, [&](int, int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      const T* image = input + sample * window.input.size();
      T* to = output + sample * per_sample;
      for (int64_t oy = 0; oy < window.output_height; ++oy) {
        const int64_t top = oy * window.stride - window.padding;
        for (int64_t ox = 0; ox < window.output_width; ++ox, to += channels) {
          const int64_t left = ox * window.stride - window.padding;
          std::fill(to, to + channels, T{0});
          for (int64_t y = std::max<int64_t>(top, 0);
               y < std::min(top + window.height, window.input.height); ++y) {
            for (int64_t x = std::max<int64_t>(left, 0);
                 x < std::min(left + window.width, window.input.width); ++x) {
              const T* pixel = image + (y * window.input.width + x) * channels;
              for (int64_t c = 0; c < channels; ++c) to[c] += pixel[c];
            }
          }
          for (int64_t c = 0; c < channels; ++c) to[c] *= share;
        }
      }
    }
  });
}

template <typename T>
void CpuDevice<T>::AveragePoolBackward(const Window& window, int64_t samples,
                                       const T* output_gradient, T* input_gradient) {
  const int64_t channels = window.input.channels;
  const int64_t per_sample = window.positions() * channels;
  const T share = T{1} / static_cast<T>(window.height * window.width);
  For(samples, per_sample * window.height * window.width, [&](int, int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      T* image = input_gradient + sample * window.input.size();
      std::memset(image, 0, window.input.size() * sizeof(T));
      const T* from = output_gradient + sample * per_sample;
      for (int64_t oy = 0; oy < window.output_height; ++oy) {
        const int64_t top = oy * window.stride - window.padding;
        for (int64_t ox = 0; ox < window.output_width; ++ox, from += channels) {
          const int64_t left = ox * window.stride - window.padding;
          for (int64_t y = std::max<int64_t>(top, 0);
               y < std::min(top + window.height, window.input.height); ++y) {
            for (int64_t x = std::max<int64_t>(left, 0);
                 x < std::min(left + window.width, window.input.width); ++x) {
              T* pixel = image + (y * window.input.width + x) * channels;
              for (int64_t c = 0; c < channels; ++c) pixel[c] += from[c] * share;
            }
          }
        }
      }
    }
  });
}

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

template <typename T>
void CpuDevice<T>::PixelsToPlanes(const Shape& shape, int64_t samples, const T* pixels, T* planes) {
  For(samples, shape.size(), [&](int, int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample) {
      const T* from = pixels + sample * shape.size();
      T* to = planes + sample * shape.size();
      for (int64_t i = 0; i < shape.positions(); ++i) {
        for (int64_t c = 0; c < shape.channels; ++c) to[c * shape.positions() + i] = *from++;
      }
    }
  });
}

template <typename T>
void CpuDevice<T>::PlanesToPixels(const Shape& shape, int64_t samples, const T* planes, T* pixels) {
  For(samples, shape.size(), [&](int, int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample) {
      const T* from = planes + sample * shape.size();
      T* to = pixels + sample * shape.size();
      for (int64_t i = 0; i < shape.positions(); ++i) {
        for (int64_t c = 0; c < shape.channels; ++c) *to++ = from[c * shape.positions() + i];
      }
    }
  });
}

template class CpuDevice<float>;
template class CpuDevice<double>;

}  // namespace syncgrads
