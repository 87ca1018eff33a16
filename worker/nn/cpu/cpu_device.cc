#include "worker/nn/cpu/cpu_device.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "worker/base/split_mix.h"
#include "worker/nn/pixels.h"

namespace syncgrads {
namespace {

// With fewer operations for a thread, waking it takes longer than it saves.
constexpr int64_t kLeastOperations = 40000;
constexpr int64_t kRangesPerThread = 4;

}  // namespace

template <typename T>
CpuDevice<T>::CpuDevice(int threads, const CpuKernels<T>& kernels)
    : pool_(threads),
      kernels_(kernels),
      thread_rows_(threads),
      part_gradients_(threads),
      part_sums_(threads) {}

template <typename T>
int64_t CpuDevice<T>::CountRanges(int64_t items, int64_t operations_each, int64_t most) {
  return std::max<int64_t>(1, std::min<int64_t>({most, items, ThreadPool::kMostParts,
                                                 items * operations_each / kLeastOperations}));
}

template <typename T>
void CpuDevice<T>::For(int64_t items, int64_t operations_each, Range range) {
  const int64_t most = pool_.threads() == 1 ? 1 : kRangesPerThread * pool_.threads();
  const int64_t ranges = CountRanges(items, operations_each, most);
  pool_.Run(static_cast<int>(ranges), [&](int thread, int i) {
    range(thread, items * i / ranges, items * (i + 1) / ranges);
  });
}

template <typename T>
void CpuDevice<T>::ForParts(int64_t items, int64_t operations_each, Range range) {
  const int64_t parts = CountRanges(items, operations_each, pool_.threads());
  pool_.Run(static_cast<int>(parts), [&](int /*thread*/, int part) {
    range(part, items * part / parts, items * (part + 1) / parts);
  });
}

template <typename T>
void CpuDevice<T>::MultiplyMatrices(const MatrixProduct<T>& product) {
  const bool by_rows = product.rows >= product.columns;
  const int64_t items = by_rows ? product.rows : product.columns;
  // Each range packs the other factor again, so there are few.
  ForParts(items, (by_rows ? product.columns : product.rows) * product.inner / 4 + 1,
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
void CpuDevice<T>::AddBias(int64_t rows, int64_t columns, const T* bias, Activation activation,
                           T* values) {
  const bool relu = activation == Activation::kRelu;
  if (bias != nullptr || relu) kernels_.add_bias(rows, columns, bias, relu, values);
  if (!relu) syncgrads::Activate(activation, rows * columns, values);
}

template <typename T>
void CpuDevice<T>::AddBiasBackward(int64_t rows, int64_t columns, Activation activation,
                                   const T* outputs, T* gradient, T* bias_gradient) {
  if (bias_gradient == nullptr) {
    return Differentiate(activation, rows * columns, outputs, gradient);
  }
  const bool relu = activation == Activation::kRelu;
  std::vector<double> sums(columns);
  SumColumns(
      rows, columns,
      [&](int64_t begin, int64_t end, double* part) {
        const int64_t first = begin * columns;
        const T* own = outputs + first;
        if (!relu) {
          syncgrads::MultiplyByDerivative(activation, (end - begin) * columns, own,
                                          gradient + first);
        }
        kernels_.sum_rows(end - begin, columns, relu ? own : nullptr, gradient + first, part);
      },
      sums.data());
  for (int64_t i = 0; i < columns; ++i) bias_gradient[i] = static_cast<T>(sums[i]);
}

template <typename T>
void CpuDevice<T>::Multiply(const Affine<T>& layer, int64_t samples, const Stored<T>* stored_input,
                            Stored<T>* stored_output) {
  const T* const input = Plain(stored_input);
  T* const output = Plain(stored_output);
  MultiplyMatrices(OutputOf(layer, layer.kernel, samples, input, output));
  const bool is_slow =
      layer.activation == Activation::kTanh || layer.activation == Activation::kSigmoid;
  For(samples, layer.outputs * (is_slow ? 20 : 1), [&](int, int64_t begin, int64_t end) {
    AddBias(end - begin, layer.outputs, layer.bias, layer.activation,
            output + begin * layer.outputs);
  });
}

template <typename T>
void CpuDevice<T>::MultiplyBackward(const Affine<T>& layer, int64_t samples,
                                    const Stored<T>* stored_input, const Stored<T>* stored_output,
                                    Stored<T>* stored_output_gradient,
                                    const LayerGradients<T>& gradients) {
  const T* const input = Plain(stored_input);
  const T* const output = Plain(stored_output);
  T* const output_gradient = Plain(stored_output_gradient);
  AddBiasBackward(samples, layer.outputs, layer.activation, output, output_gradient,
                  gradients.bias);
  MultiplyMatrices(KernelGradientOf(layer, samples, input, output_gradient, gradients.weights));
  if (gradients.input == nullptr) return;
  MultiplyMatrices(
      InputGradientOf(layer, layer.kernel, samples, output_gradient, Plain(gradients.input)));
}

template <typename T>
void CpuDevice<T>::SumColumns(int64_t rows, int64_t columns,
                              absl::FunctionRef<void(int64_t, int64_t, double*)> sum,
                              double* sums) {
  for (std::vector<double>& part : part_sums_) part.clear();
  ForParts(rows, columns, [&](int part, int64_t begin, int64_t end) {
    part_sums_[part].assign(columns, 0.0);
    sum(begin, end, part_sums_[part].data());
  });
  std::fill(sums, sums + columns, 0.0);
  for (const std::vector<double>& part : part_sums_) {
    for (size_t i = 0; i < part.size(); ++i) sums[i] += part[i];
  }
}

template <typename T>
void CpuDevice<T>::Add(Activation activation, int64_t count, const Stored<T>* stored_a,
                       const Stored<T>* stored_b, Stored<T>* stored_sum) {
  const T* const a = Plain(stored_a);
  const T* const b = Plain(stored_b);
  T* const sum = Plain(stored_sum);
  const bool relu = activation == Activation::kRelu;
  For(count, 1, [&](int, int64_t begin, int64_t end) {
    kernels_.add(end - begin, a + begin, b + begin, relu, sum + begin);
    if (!relu) syncgrads::Activate(activation, end - begin, sum + begin);
  });
}

template <typename T>
void CpuDevice<T>::Differentiate(Activation activation, int64_t count, const T* outputs,
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
void CpuDevice<T>::ActivateBackward(Activation activation, int64_t count, const Stored<T>* outputs,
                                    Stored<T>* gradient) {
  Differentiate(activation, count, Plain(outputs), Plain(gradient));
}

template <typename T>
void CpuDevice<T>::Store(int64_t count, const T* from, Stored<T>* to) {
  memory_.Copy(from, static_cast<size_t>(count) * sizeof(T), to);
}

template <typename T>
void CpuDevice<T>::Load(int64_t count, const Stored<T>* from, T* to) {
  memory_.Copy(from, static_cast<size_t>(count) * sizeof(T), to);
}

template <typename T>
void CpuDevice<T>::StorePixels(int64_t count, int64_t channels, const unsigned char* pixels,
                               const T* numbers, Stored<T>* to) {
  For(count / channels, channels, [&](int, int64_t begin, int64_t end) {
    ConvertPixels((end - begin) * channels, channels, pixels + begin * channels, numbers,
                  Plain(to) + begin * channels);
  });
}

template <typename T>
void CpuDevice<T>::Accumulate(int64_t count, const T* values, T* sum) {
  For(count, 1, [&](int, int64_t begin, int64_t end) {
    kernels_.add(end - begin, sum + begin, values + begin, /*relu=*/false, sum + begin);
  });
}

template <typename T>
void CpuDevice<T>::UpdateMovingAverage(T weight, int64_t count, const T* values, T* average) {
  For(count, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) average[i] += weight * (values[i] - average[i]);
  });
}

template <typename T>
void CpuDevice<T>::Dropout(uint64_t key, double rate, int64_t count, const Stored<T>* stored_input,
                           Stored<T>* stored_output) {
  const T* const input = Plain(stored_input);
  T* const output = Plain(stored_output);
  const T kept = static_cast<T>(1 / (1 - rate));
  For(count, 4, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      output[i] = input[i] * (UniformAt(key, static_cast<uint64_t>(i)) < rate ? T{0} : kept);
    }
  });
}

template <typename T>
void CpuDevice<T>::ScaleToRanges(const RangeScaling<T>& layer, const Stored<T>* stored_input,
                                 Stored<T>* stored_output) {
  const T* const input = Plain(stored_input);
  T* const output = Plain(stored_output);
  for (int64_t column = 0; column < layer.columns; ++column) {
    const T width = layer.maximum[column] - layer.minimum[column];
    const T scale = width > 0 ? 2 / width : T{0};
    const T offset = scale > 0 ? T{-1} : T{0};
    for (int64_t row = 0; row < layer.rows; ++row) {
      const int64_t i = row * layer.columns + column;
      output[i] = (input[i] - layer.minimum[column]) * scale + offset;
    }
  }
}

template <typename T>
void CpuDevice<T>::ScaleToRangesBackward(const RangeScaling<T>& layer,
                                         const Stored<T>* stored_output_gradient,
                                         Stored<T>* stored_input_gradient) {
  const T* const output_gradient = Plain(stored_output_gradient);
  T* const input_gradient = Plain(stored_input_gradient);
  for (int64_t column = 0; column < layer.columns; ++column) {
    const T width = layer.maximum[column] - layer.minimum[column];
    const T scale = width > 0 ? 2 / width : T{0};
    for (int64_t row = 0; row < layer.rows; ++row) {
      const int64_t i = row * layer.columns + column;
      input_gradient[i] = output_gradient[i] * scale;
    }
  }
}

template <typename T>
void CpuDevice<T>::Transpose(int64_t count, int64_t rows, int64_t columns,
                             const Stored<T>* stored_from, Stored<T>* stored_to) {
  const T* const from = Plain(stored_from);
  T* const to = Plain(stored_to);
  For(count, rows * columns, [&](int, int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const T* source = from + block * rows * columns;
      T* target = to + block * rows * columns;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
          target[column * rows + row] = *source++;
        }
      }
    }
  });
}

template <typename T>
void CpuDevice<T>::FindLoss(const RowLossRule& rule, int64_t rows, int64_t columns,
                            const Stored<T>* stored_outputs, const double* targets, double divisor,
                            double* total, Stored<T>* stored_gradient) {
  const T* const outputs = Plain(stored_outputs);
  T* const gradient = Plain(stored_gradient);
  terms_.resize(rows);
  For(rows, 40 * columns, [&](int, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* output = outputs + row * columns;
      terms_[row] = RowLoss(rule, columns, output, targets[row]);
      RowLossGradient(rule, columns, output, targets[row], divisor, gradient + row * columns);
    }
  });
  double sum = 0;
  for (const double loss : terms_) sum += loss;
  *total += 1 / divisor * sum;
}

// The array is summed in pieces of a fixed length, which are then added in order, so the bits do
// not depend on the number of threads.
template <typename T>
void CpuDevice<T>::Penalise(double l2, int64_t count, const T* values, T* gradient) {
  constexpr int64_t kPiece = 1 << 14;
  const int64_t pieces = (count + kPiece - 1) / kPiece;
  terms_.resize(pieces);
  For(pieces, kPiece, [&](int, int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kPiece;
      terms_[piece] = kernels_.penalise(std::min(kPiece, count - first), static_cast<T>(l2),
                                        values + first, gradient + first);
    }
  });
  double sum = 0;
  for (const double term : terms_) sum += term;
  penalties_ += l2 / 2 * sum;
}

template <typename T>
void CpuDevice<T>::TakePenalties(double* total) {
  *total += std::exchange(penalties_, 0);
}

// The result has the same bits wherever the arrays are split.
template <typename T>
void CpuDevice<T>::Update(const Optimizer& rule, absl::Span<const ArrayUpdate<T>> arrays) {
  const int slot_count = SlotCount(rule);
  int64_t total = 0;
  for (const ArrayUpdate<T>& array : arrays) total += array.count;
  For(total, 4, [&](int, int64_t begin, int64_t end) {
    int64_t first = 0;  // the position of the array's first number among all
    for (const ArrayUpdate<T>& array : arrays) {
      const int64_t from = std::max(begin - first, int64_t{0});
      const int64_t to = std::min(end - first, array.count);
      first += array.count;
      if (from >= to) continue;
      std::vector<std::byte*> slots;
      for (int s = 0; s < slot_count; ++s) {
        slots.push_back(reinterpret_cast<std::byte*>(array.slots[s] + from));
      }
      const std::vector<const std::byte*> old(slots.begin(), slots.end());
      std::byte* const values = reinterpret_cast<std::byte*>(array.values + from);
      ApplyUpdate(rule, DTypeOf<T>::value, array.step,
                  reinterpret_cast<const std::byte*>(array.gradient + from),
                  static_cast<size_t>(to - from), values, values, old, slots);
    }
  });
}

// Members that other files define are instantiated there.
template class CpuDevice<float>;
template class CpuDevice<double>;

}  // namespace syncgrads
