// The CPU as a device: matrix products by Eigen, on a given number of threads.

#ifndef SYNCGRADS_WORKER_NN_CPU_CPU_DEVICE_H_
#define SYNCGRADS_WORKER_NN_CPU_CPU_DEVICE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "worker/base/thread_pool.h"
#include "worker/nn/cpu/kernels.h"
#include "worker/nn/device.h"

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
  void Multiply(const MatrixProduct<T>& product) override;
  void AddToRows(int64_t rows, int64_t columns, const T* addend, T* values) override;
  void SumRows(int64_t rows, int64_t columns, const T* values, T* sums) override;
  void Add(int64_t count, const T* a, const T* b, T* sum) override;
  void MultiplyEach(int64_t count, const T* a, const T* b, T* product) override;
  void AddScaled(int64_t count, T factor, const T* a, T* sum) override;
  void UpdateMovingAverage(int64_t count, T step, T factor, const T* target, T* values) override;
  void Activate(Activation activation, int64_t count, T* values) override;
  void MultiplyByDerivative(Activation activation, int64_t count, const T* outputs,
                            T* gradient) override;
  void DrawDropout(uint64_t key, double rate, int64_t count, T* factors) override;
  void ScaleToRanges(int64_t rows, int64_t columns, const T* minimum, const T* maximum,
                     const T* input, T* output) override;
  void ScaleToRangesBackward(int64_t rows, int64_t columns, const T* minimum, const T* maximum,
                             const T* output_gradient, T* input_gradient) override;
  void FindLosses(const RowLossRule& rule, int64_t rows, int64_t columns, const T* outputs,
                  const double* targets, double divisor, double* losses, T* gradient) override;
  void AddUp(int64_t count, double factor, const double* values, double* sum) override;
  void Update(const Optimizer& rule, uint64_t step, int64_t count, const T* gradient, T* values,
              T* const* slots) override;
  void Convolve(const Window& window, int64_t samples, int64_t outputs, const T* input,
                const T* weights, T* output) override;
  void ConvolveBackward(const Window& window, int64_t samples, int64_t outputs, const T* input,
                        const T* weights, const T* output_gradient, T* weights_gradient,
                        T* input_gradient) override;
  void MaxPool(const Window& window, int64_t samples, const T* input, T* output,
               int32_t* chosen) override;
  void MaxPoolBackward(const Window& window, int64_t samples, const int32_t* chosen,
                       const T* output_gradient, T* input_gradient) override;
  void AveragePool(const Window& window, int64_t samples, const T* input, T* output) override;
  void AveragePoolBackward(const Window& window, int64_t samples, const T* output_gradient,
                           T* input_gradient) override;
  void FindMoments(int64_t rows, int64_t channels, T epsilon, const T* input,
                   const BatchMoments<T>& moments, T* variance) override;
  void InvertDeviations(int64_t channels, T epsilon, const T* variance,
                        T* inverse_deviation) override;
  void Normalise(int64_t rows, int64_t channels, const BatchMoments<T>& moments, const T* scale,
                 const T* shift, const T* input, T* output) override;
  void NormaliseBackward(int64_t rows, int64_t channels, const BatchMoments<T>& moments,
                         bool of_batch, const T* scale, const T* input, const T* output_gradient,
                         T* scale_gradient, T* shift_gradient, T* input_gradient) override;
  void PixelsToPlanes(const Shape& shape, int64_t samples, const T* pixels, T* planes) override;
  void PlanesToPixels(const Shape& shape, int64_t samples, const T* planes, T* pixels) override;

 private:
  // Splits `items` into even ranges and calls `range(part, begin, end)` for each, one range on
  // each thread. Uses fewer ranges if a range would have too few operations.
  void For(int64_t items, int64_t operations_each,
           absl::FunctionRef<void(int part, int64_t begin, int64_t end)> range);

  // Computes column sums. Splits the rows into ranges; `sum(begin, end, sums)` adds the rows of
  // a range to `sums`. The ranges are then added in order.
  void SumColumns(int64_t rows, int64_t columns,
                  absl::FunctionRef<void(int64_t begin, int64_t end, double* sums)> sum,
                  double* sums);

  // Returns the weights as [outputs, window.size()], in the order of the rows of Im2Col.
  // The result is valid until the next call. UnpackWeights does the reverse.
  const T* PackWeights(const Window& window, int64_t outputs, const T* weights);
  void UnpackWeights(const Window& window, int64_t outputs, const T* packed, T* weights);

  // Returns the im2col rows of all samples, in rows_; or `input` if the rows are the input
  // itself.
  const T* AllRows(const Window& window, int64_t samples, const T* input);

  HostMemory memory_;
  ThreadPool pool_;
  const CpuKernels<T>& kernels_;
  std::vector<std::vector<T>> part_rows_;       // im2col rows of each part
  std::vector<std::vector<T>> part_gradients_;  // weights' gradients of each part
  std::vector<std::vector<double>> part_sums_;
  std::vector<T> rows_;
  std::vector<T> row_gradients_;
  std::vector<T> packed_;
  std::vector<T> packed_gradient_;
};

extern template class CpuDevice<float>;
extern template class CpuDevice<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CPU_CPU_DEVICE_H_
