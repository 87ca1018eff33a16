// A CUDA device: cuBLAS computes matrix products, cuDNN convolutions where it is installed, and our
// own kernels everything else.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUDA_DEVICE_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/nn/accelerators.h"
#include "worker/nn/cuda/bf16.h"
#include "worker/nn/cuda/convolution_plans.h"
#include "worker/nn/cuda/cublas.h"
#include "worker/nn/cuda/cuda_memory.h"
#include "worker/nn/cuda/kernels.h"
#include "worker/nn/device.h"
#include "worker/nn/device_array.h"
#include "worker/nn/device_matrix.h"
#include "worker/nn/matrix_product.h"

namespace syncgrads::cuda {

struct CudaOptions {
  // The precision of matrix products if activations are stored as float. Not kBf16.
  MatrixPrecision precision = MatrixPrecision::kF32;
  // Limit on the memory for the im2col rows of one matrix product, or for the workspace of a
  // convolution by cuDNN. The rows of one sample may exceed it.
  int64_t row_bytes = int64_t{256} << 20;
  // Whether cuDNN computes convolutions, where it is installed.
  bool cudnn = true;
  // Called if cuDNN is installed but fails. The device then computes without it.
  std::function<void(const std::string& warning)> warn;
  // The deadline of a wait for the device. A training step takes seconds at most.
  absl::Duration timeout = absl::Minutes(5);
};

// A CUDA device that stores activations, gradients by them, and im2col rows as S: float, double or
// Bf16. The same calls give the same bits on devices of the same kind with the same
// versions of cuBLAS and cuDNN.
//
// Not thread-safe, but different threads may use it one after another.
template <typename T, typename S = T>
class CudaDevice : public Device<T> {
 public:
  // Errors:
  //   ResourceExhausted  the device has no room for cuBLAS's workspace
  //   Internal           cuBLAS cannot be set up on the device
  //   others             those of CudaMemory::Create and LoadCublas
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int index, const CudaOptions& options);
  ~CudaDevice() override;

  DeviceMemory& memory() override { return *memory_; }
  int64_t stored_bytes() const override { return sizeof(S); }
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
  CudaDevice(std::unique_ptr<CudaMemory> memory, const Cublas& cublas, const CudaOptions& options);
  absl::Status Open();
  void OpenPlans();

  // Queues the work that `launch(stream)` launches, unless the device has failed. `what` names
  // the work in an error.
  template <typename Launch>
  void Run(const char* what, Launch launch);

  // Calls cuBLAS: call() returns its status. Sets the device's status if that is an error. `what`
  // names the call.
  template <typename Call>
  void RunCublas(const char* what, Call call);
  // Whether a call of cuBLAS failed because the device has no memory for its kernels, or its
  // handle. cuBLAS has no code for this: it returns the codes of other failures.
  bool LacksMemory(cublasStatus_t status);

  template <typename Result>
  void MultiplyMatrices(const MatrixProduct<S, Result>& product);

  // Return the weights as [outputs, RowSize(window)], in the order of the rows of Im2Col, and the
  // kernel in its own order, both stored as S. Unless they are that already, the result is in
  // layer.packed or, if that is null, valid until the next call.
  const S* PackWeights(const Convolution<T>& layer);
  const S* PackKernel(const Affine<T>& layer);
  // The result of the last call for `layer`. Calls the function again if nothing was kept.
  const S* PackedWeights(const Convolution<T>& layer);
  const S* PackedKernel(const Affine<T>& layer);
  // Returns `packed` or, if it is null, packed_, with the given size.
  S* RoomForPacked(DeviceMatrix<T>* packed, int64_t rows, int64_t columns);
  // Queues a convolution by cuDNN. Returns false if cuDNN does not compute it.
  bool RunPlan(ConvolutionPass pass, const Convolution<T>& layer, int64_t samples,
               const ConvolutionTensors& tensors);
  // Whether weights have the order of the rows of Im2Col.
  static bool AreInOrder(const Window& window);

  // ActivateBackward, and the gradient by the bias, if it is not null.
  void AddBiasBackward(int64_t rows, int64_t columns, Activation activation,
                       const Stored<T>* outputs, Stored<T>* gradient, T* bias_gradient);

  // Returns scratch memory for `count` doubles. It is valid until the next call.
  double* Scratch(int64_t count);

  // Whether kernels can index so many images, and `each` numbers of windows for each of them. If
  // not, sets the device's status to an error.
  bool Fits(const Window& window, int64_t samples, int64_t each);

  const std::unique_ptr<CudaMemory> memory_;
  const Cublas& cublas_;
  const CudaOptions options_;
  cublasHandle_t handle_ = nullptr;
  DeviceArray<unsigned char> workspace_;     // scratch memory of cuBLAS
  std::unique_ptr<ConvolutionPlans> plans_;  // null: without cuDNN
  DeviceArray<S> rows_;  // im2col rows, or their gradients; or the workspace of a plan
  DeviceArray<S> packed_;
  DeviceArray<T> packed_gradient_;
  DeviceArray<S> planned_gradient_;  // by cuDNN, if S is not T
  DeviceArray<double> scratch_;
  DeviceArray<double> penalty_terms_;
  DeviceArray<T> factors_;
};

extern template class CudaDevice<float>;
extern template class CudaDevice<double>;
extern template class CudaDevice<float, Bf16>;

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUDA_DEVICE_H_
