// A CUDA device: cuBLAS computes matrix products, our own kernels everything else.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUDA_DEVICE_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/nn/accelerators.h"
#include "worker/nn/cuda/cublas.h"
#include "worker/nn/cuda/cuda_memory.h"
#include "worker/nn/cuda/kernels.h"
#include "worker/nn/device.h"
#include "worker/nn/device_matrix.h"

namespace syncgrads::cuda {

struct CudaOptions {
  // The precision of matrix products of float.
  MatrixPrecision precision = MatrixPrecision::kF32;
  // Limit on the memory for the im2col rows of one matrix product. The rows of one sample may
  // exceed it.
  int64_t row_bytes = int64_t{256} << 20;
};

// A CUDA device. The same calls give the same bits on devices of the same kind with the same
// version of cuBLAS.
//
// Not thread-safe, but different threads may use it one after another.
template <typename T>
class CudaDevice : public Device<T> {
 public:
  // Errors:
  //   ResourceExhausted  the device has no room for cuBLAS's workspace
  //   Internal           cuBLAS cannot be set up on the device
  //   others             those of CudaMemory::Create and LoadCublas
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int index, const CudaOptions& options);
  ~CudaDevice() override;

  DeviceMemory& memory() override { return *memory_; }
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
  CudaDevice(std::unique_ptr<CudaMemory> memory, const Cublas& cublas, const CudaOptions& options);
  absl::Status Open();

  // Queues the work that `launch(stream)` launches, unless the device has failed. `what` names
  // the work in an error.
  template <typename Launch>
  void Run(const char* what, Launch launch);

  // Sets the device's status to an error if a call of cuBLAS has failed. `what` names the call.
  void Check(cublasStatus_t status, const char* what);

  // Returns the weights as [outputs, window.size()], in the order of the rows of Im2Col.
  // The result is valid until the next call.
  const T* PackWeights(const Window& window, int64_t outputs, const T* weights);

  // Returns scratch memory for column sums, see StripsFor. It is valid until the next call.
  double* StripsOf(int64_t rows, int64_t columns);

  const std::unique_ptr<CudaMemory> memory_;
  const Cublas& cublas_;
  const CudaOptions options_;
  cublasHandle_t handle_ = nullptr;
  DeviceMatrix<unsigned char> workspace_;  // scratch memory of cuBLAS
  DeviceMatrix<T> rows_;                   // im2col rows, or their gradients
  DeviceMatrix<T> packed_;
  DeviceMatrix<T> packed_gradient_;
  DeviceMatrix<double> strips_;
  DeviceMatrix<double> sums_;
  DeviceMatrix<T> factors_;
};

extern template class CudaDevice<float>;
extern template class CudaDevice<double>;

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUDA_DEVICE_H_
