#include "worker/nn/cpu/cpu_device.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/dtype.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "worker/base/split_mix.h"

namespace syncgrads {
namespace {

// With fewer operations for a thread, waking it takes longer than it saves.
constexpr int64_t kLeastOperations = 40000;

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
void CpuDevice<T>::UpdateMovingAverage(int64_t count, T step, T factor, const T* target,
                                       T* values) {
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
void CpuDevice<T>::FindLosses(const RowLossRule& rule, int64_t rows, int64_t columns,
                              const T* outputs, const double* targets, double divisor,
                              double* losses, T* gradient) {
  For(rows, 40 * columns, [&](int, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* output = outputs + row * columns;
      losses[row] = RowLoss(rule, columns, output, targets[row]);
      RowLossGradient(rule, columns, output, targets[row], divisor, gradient + row * columns);
    }
  });
}

template <typename T>
void CpuDevice<T>::AddUp(int64_t count, double factor, const double* values, double* sum) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += values[i];
  *sum += factor * total;
}

// The result has the same bits wherever the range is split.
template <typename T>
void CpuDevice<T>::Update(const Optimizer& rule, uint64_t step, int64_t count, const T* gradient,
                          T* values, T* const* slots) {
  const size_t slot_count = static_cast<size_t>(SlotCount(rule));
  For(count, 4, [&](int, int64_t begin, int64_t end) {
    std::vector<std::byte*> at;
    for (size_t s = 0; s < slot_count; ++s) {
      at.push_back(reinterpret_cast<std::byte*>(slots[s] + begin));
    }
    const std::vector<const std::byte*> old(at.begin(), at.end());
    std::byte* const parameters = reinterpret_cast<std::byte*>(values + begin);
    ApplyUpdate(rule, DTypeOf<T>::value, step, reinterpret_cast<const std::byte*>(gradient + begin),
                static_cast<size_t>(end - begin), parameters, parameters, old, at);
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

// Members that other files define are instantiated there.
template class CpuDevice<float>;
template class CpuDevice<double>;

}  // namespace syncgrads
