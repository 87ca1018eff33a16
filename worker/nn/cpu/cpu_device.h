// The CPU as a device: matrix products by Eigen, on a given number of threads.

#ifndef SYNCGRADS_WORKER_NN_CPU_CPU_DEVICE_H_
#define SYNCGRADS_WORKER_NN_CPU_CPU_DEVICE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "worker/base/thread_pool.h"
#include "worker/nn/cpu/kernels.h"
#include "worker/nn/device.h"
#include "worker/nn/device_matrix.h"
#include "worker/nn/matrix_product.h"

namespace syncgrads {

// The CPU as a device. Results have the same bits in every run with the same number of threads
// on processors with the same instructions. Otherwise they differ by rounding.
//
// Not thread-safe.
template <typename T>
class CpuDevice : public Device<T> {
 public:
  // `threads` is at least 1. `kernels` must outlive the device.
  explicit CpuDevice(int threads, const CpuKernels<T>& kernels = ChooseCpuKernels<T>());

  DeviceMemory& memory() override { return memory_; }
  void Store(int64_t count, const T* from, Stored<T>* to) override;
  void Load(int64_t count, const Stored<T>* from, T* to) override;
  void StorePixels(int64_t count, int64_t channels, const unsigned char* pixels, const T* numbers,
                   Stored<T>* to) override;
  void Convolve(const Convolution<T>& layer, int64_t samples, const Stored<T>* input,
                Stored<T>* output) override;
  void ConvolveBackward(const Convolution<T>& layer, int64_t samples, const Stored<T>* input,
                        const Stored<T>* output, Stored<T>* output_gradient,
                        const LayerGradients<T>& gradients) override;
  void Multiply(const Affine<T>& layer, int64_t samples, const Stored<T>* input,
                Stored<T>* output) override;
  void MultiplyBackward(const Affine<T>& layer, int64_t samples, const Stored<T>* input,
                        const Stored<T>* output, Stored<T>* output_gradient,
                        const LayerGradients<T>& gradients) override;
  void FindStatistics(int64_t rows, int64_t channels, const Stored<T>* input,
                      const BatchStatistics<T>& statistics) override;
  void Normalise(const Normalisation<T>& layer, const Stored<T>* input, Stored<T>* output) override;
  void NormaliseBackward(const Normalisation<T>& layer, bool of_batch, const Stored<T>* input,
                         const Stored<T>* output, Stored<T>* output_gradient,
                         const LayerGradients<T>& gradients) override;
  void Add(Activation activation, int64_t count, const Stored<T>* a, const Stored<T>* b,
           Stored<T>* sum) override;
  void ActivateBackward(Activation activation, int64_t count, const Stored<T>* outputs,
                        Stored<T>* gradient) override;
  void Pool(Pooling pooling, const Window& window, int64_t samples, const Stored<T>* input,
            Stored<T>* output, int32_t* chosen) override;
  void PoolBackward(Pooling pooling, const Window& window, int64_t samples, const int32_t* chosen,
                    const Stored<T>* output_gradient, Stored<T>* input_gradient) override;
  void Dropout(uint64_t key, double rate, int64_t count, const Stored<T>* input,
               Stored<T>* output) override;
  void ScaleToRanges(const RangeScaling<T>& layer, const Stored<T>* input,
                     Stored<T>* output) override;
  void ScaleToRangesBackward(const RangeScaling<T>& layer, const Stored<T>* output_gradient,
                             Stored<T>* input_gradient) override;
  void Transpose(int64_t count, int64_t rows, int64_t columns, const Stored<T>* from,
                 Stored<T>* to) override;
  void FindLoss(const RowLossRule& rule, int64_t rows, int64_t columns, const Stored<T>* outputs,
                const double* targets, double divisor, double* total, Stored<T>* gradient) override;
  void Accumulate(int64_t count, const T* values, T* sum) override;
  void UpdateMovingAverage(T weight, int64_t count, const T* values, T* average) override;
  void Penalise(double l2, int64_t count, const T* values, T* gradient) override;
  void TakePenalties(double* total) override;
  void Update(const Optimizer& rule, absl::Span<const ArrayUpdate<T>> arrays) override;

 private:
  // The processor stores activations as T.
  static T* Plain(Stored<T>* stored) { return reinterpret_cast<T*>(stored); }
  static const T* Plain(const Stored<T>* stored) { return reinterpret_cast<const T*>(stored); }

  // Splits `items` into even ranges and calls `range(thread, begin, end)` for each. There are
  // several ranges for each thread, so that they end at the same time even if one has less of a
  // processor, but fewer if a range would have too few operations.
  using Range = absl::FunctionRef<void(int number, int64_t begin, int64_t end)>;
  void For(int64_t items, int64_t operations_each, Range range);
  // As For, but calls `range(part, begin, end)` for at most as many ranges as there are threads: if
  // each range has a cost of its own, for example a sum.
  void ForParts(int64_t items, int64_t operations_each, Range range);
  // How many ranges to make, at most `most`.
  static int64_t CountRanges(int64_t items, int64_t operations_each, int64_t most);

  // Computes a matrix product on all threads.
  void MultiplyMatrices(const MatrixProduct<T>& product);

  // values = activation(values + bias[c]), on the calling thread. `bias` may be null.
  void AddBias(int64_t rows, int64_t columns, const T* bias, Activation activation, T* values);
  // The reverse, on all threads: Differentiate, and then sets the gradient by the bias to the
  // sums of the columns, if it is not null.
  void AddBiasBackward(int64_t rows, int64_t columns, Activation activation, const T* outputs,
                       T* gradient, T* bias_gradient);

  // gradient *= f'(x), on all threads.
  void Differentiate(Activation activation, int64_t count, const T* outputs, T* gradient);

  // Pool and PoolBackward for each kind of pooling.
  void MaxPool(const Window& window, int64_t samples, const T* input, T* output, int32_t* chosen);
  void MaxPoolBackward(const Window& window, int64_t samples, const int32_t* chosen,
                       const T* output_gradient, T* input_gradient);
  void AveragePool(const Window& window, int64_t samples, const T* input, T* output);
  void AveragePoolBackward(const Window& window, int64_t samples, const T* output_gradient,
                           T* input_gradient);

  // Computes column sums. Splits the rows into ranges; `sum(begin, end, sums)` adds the rows of
  // a range to `sums`. The ranges are then added in order.
  void SumColumns(int64_t rows, int64_t columns,
                  absl::FunctionRef<void(int64_t begin, int64_t end, double* sums)> sum,
                  double* sums);

  // Returns the weights as [outputs, window.size()], in the order of the rows of Im2Col. The result
  // is in layer.packed or, if that is null, valid until the next call.
  const T* PackWeights(const Convolution<T>& layer);
  // The reverse, of the sum of `parts`, which are added in order; the first one is overwritten.
  void UnpackWeights(const Window& window, int64_t outputs, absl::Span<T* const> parts, T* weights);

  // Returns the im2col rows of all samples, in rows_; or `input` if the rows are the input
  // itself.
  const T* AllRows(const Window& window, int64_t samples, const T* input);

  HostMemory memory_;
  ThreadPool pool_;
  const CpuKernels<T>& kernels_;
  std::vector<std::vector<T>> thread_rows_;     // im2col rows of each thread or part
  std::vector<std::vector<T>> part_gradients_;  // weights' gradients of each part
  std::vector<std::vector<double>> part_sums_;
  std::vector<T> rows_;
  std::vector<T> row_gradients_;
  DeviceMatrix<T> packed_{*this};
  std::vector<double> terms_;  // of a sum
  double penalties_ = 0;       // since the last TakePenalties
};

extern template class CpuDevice<float>;
extern template class CpuDevice<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CPU_CPU_DEVICE_H_
