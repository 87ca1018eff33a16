#include "worker/nn/cuda/cuda_device.h"

#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/nn/cuda/cudnn.h"
#include "worker/nn/cuda/geometry.h"

namespace syncgrads::cuda {
namespace {

// The size that NVIDIA recommends for the newest devices. With a workspace of its own, cuBLAS
// makes the same choices, and so gives the same bits, in every run.
constexpr int64_t kWorkspaceBytes = 32 << 20;

// With less free memory than this, errors of cuBLAS that have no other explanation mean that it
// could not load a kernel, or create a handle.
constexpr size_t kCublasNeedsBytes = size_t{128} << 20;

cublasComputeType_t ComputeTypeOf(MatrixPrecision precision) {
  switch (precision) {
    case MatrixPrecision::kF32:
      return CUBLAS_COMPUTE_32F;
    case MatrixPrecision::kTf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case MatrixPrecision::kBf16:
      return CUBLAS_COMPUTE_32F_FAST_16BF;
  }
  return CUBLAS_COMPUTE_32F;
}

}  // namespace

template <typename T>
absl::StatusOr<std::unique_ptr<CudaDevice<T>>> CudaDevice<T>::Create(int index,
                                                                     const CudaOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(const Cublas* cublas, LoadCublas());
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<CudaMemory> memory,
                             CudaMemory::Create(index, options.timeout));
  auto device = absl::WrapUnique(new CudaDevice(std::move(memory), *cublas, options));
  SYNCGRADS_RETURN_IF_ERROR(device->Open());
  return device;
}

template <typename T>
CudaDevice<T>::CudaDevice(std::unique_ptr<CudaMemory> memory, const Cublas& cublas,
                          const CudaOptions& options)
    : memory_(std::move(memory)),
      cublas_(cublas),
      options_(options),
      workspace_(*memory_),
      rows_(*memory_),
      packed_(*memory_),
      packed_gradient_(*memory_),
      scratch_(*memory_),
      penalty_terms_(*memory_),
      factors_(*memory_) {}

template <typename T>
absl::Status CudaDevice<T>::Open() {
  const cudaStream_t stream = memory_->compute();
  RunCublas("cublasCreate", [this] { return cublas_.create(&handle_); });
  if (handle_ == nullptr) return memory_->status();
  RunCublas("cublasSetStream", [&] { return cublas_.set_stream(handle_, stream); });
  workspace_.Resize(1, kWorkspaceBytes);
  RunCublas("cublasSetWorkspace",
            [this] { return cublas_.set_workspace(handle_, workspace_.data(), kWorkspaceBytes); });
  if (options_.cudnn && std::is_same_v<T, float>) OpenPlans();
  return memory_->status();
}

// A device without cuDNN is complete, so an error is only a warning.
template <typename T>
void CudaDevice<T>::OpenPlans() {
  const absl::StatusOr<const Cudnn*> cudnn = LoadCudnn();
  if (!cudnn.ok()) return;  // it is not installed
  const cudaStream_t stream = memory_->compute();
  absl::StatusOr<std::unique_ptr<ConvolutionPlans>> plans = memory_->Time("cudnnCreate", [&] {
    return ConvolutionPlans::Create(**cudnn, stream, {options_.row_bytes, options_.warn});
  });
  if (plans.ok()) {
    plans_ = *std::move(plans);
  } else if (options_.warn) {
    options_.warn(absl::StrCat("cuDNN is not used: ", plans.status().message()));
  }
}

template <typename T>
CudaDevice<T>::~CudaDevice() {
  // cuDNN must not free a plan that queued work needs.
  if (plans_ != nullptr) memory_->Finish().IgnoreError();
  if (memory_->hangs()) {
    if (plans_ != nullptr) plans_->Abandon();
    return;
  }
  memory_->compute();
  if (handle_ != nullptr) {
    memory_->Time("cublasDestroy", [this] { return cublas_.destroy(handle_); });
  }
  if (plans_ == nullptr) return;
  memory_->Time("cudnnDestroy", [this] { plans_.reset(); });
}

template <typename T>
template <typename Launch>
void CudaDevice<T>::Run(const char* what, Launch launch) {
  if (!memory_->works()) return;
  const cudaStream_t stream = memory_->compute();
  memory_->Run(what, [&] { return launch(stream); });
}

template <typename T>
template <typename Call>
void CudaDevice<T>::RunCublas(const char* what, Call call) {
  const cublasStatus_t status = memory_->Time(what, call);
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED || LacksMemory(status)) {
    return memory_->Check(cudaErrorMemoryAllocation, absl::StrCat("cuBLAS, in ", what).c_str());
  }
  memory_->Fail(absl::InternalError(absl::StrCat(what, ": ", cublas_.describe(status))));
}

template <typename T>
bool CudaDevice<T>::LacksMemory(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_NOT_INITIALIZED && status != CUBLAS_STATUS_INTERNAL_ERROR &&
      status != CUBLAS_STATUS_EXECUTION_FAILED) {
    return false;
  }
  const cudaError_t last = memory_->Time("cudaGetLastError", [] { return cudaGetLastError(); });
  if (last != cudaSuccess) return last == cudaErrorMemoryAllocation;
  size_t free = 0, total = 0;
  const cudaError_t error =
      memory_->Time("cudaMemGetInfo", [&] { return cudaMemGetInfo(&free, &total); });
  return error == cudaSuccess && free < kCublasNeedsBytes;
}

// cuBLAS is column-major: it computes c^T = b^T a^T.
template <typename T>
void CudaDevice<T>::MultiplyMatrices(const MatrixProduct<T>& p) {
  if (!memory_->works() || p.rows == 0 || p.columns == 0) return;
  if (p.inner == 0) {
    if (p.accumulate) return;
    for (int64_t row = 0; row < p.rows; ++row) {
      memory_->SetZero(p.c + row * p.c_stride, static_cast<size_t>(p.columns) * sizeof(T));
    }
    return;
  }
  const T one = 1;
  const T kept = p.accumulate ? T{1} : T{0};
  constexpr bool kFloat = std::is_same_v<T, float>;
  constexpr cudaDataType_t kType = kFloat ? CUDA_R_32F : CUDA_R_64F;
  memory_->compute();
  RunCublas("cublasGemmEx", [&] {
    return cublas_.multiply(
        handle_, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
        p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, p.columns, p.rows, p.inner, &one, p.b, kType,
        p.b_stride, p.a, kType, p.a_stride, &kept, p.c, kType, p.c_stride,
        kFloat ? ComputeTypeOf(options_.precision) : CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT);
  });
}

template <typename T>
double* CudaDevice<T>::Scratch(int64_t count) {
  scratch_.Resize(1, count);
  return scratch_.data();
}

template <typename T>
bool CudaDevice<T>::Fits(const Window& window, int64_t samples, int64_t each) {
  if (FitsIn32Bits(window, samples, each)) return true;
  memory_->Fail(absl::InvalidArgumentError(
      absl::StrCat(samples, " images of shape ", ToString(window.input), " under a window of ",
                   window.height, "x", window.width,
                   " have 2^31 numbers or more, which a CUDA device cannot index: make the batch, "
                   "or its parts, smaller")));
  return false;
}

template <typename T>
void CudaDevice<T>::AddBiasBackward(int64_t rows, int64_t columns, Activation activation,
                                    const T* outputs, T* gradient, T* bias_gradient) {
  if (bias_gradient == nullptr) {
    return ActivateBackward(activation, rows * columns, outputs, gradient);
  }
  double* const scratch = Scratch(ColumnScratch(rows, columns));
  Run("AddBiasBackward", [&](cudaStream_t stream) {
    return cuda::AddBiasBackward(stream, rows, columns, activation, outputs, gradient, scratch,
                                 bias_gradient);
  });
}

template <typename T>
void CudaDevice<T>::Multiply(const Affine<T>& layer, int64_t samples, const T* input, T* output) {
  MultiplyMatrices(OutputOf(layer, samples, input, output));
  Run("AddBias", [&](cudaStream_t stream) {
    return cuda::AddBias(stream, samples, layer.outputs, layer.bias, layer.activation, output);
  });
}

template <typename T>
void CudaDevice<T>::MultiplyBackward(const Affine<T>& layer, int64_t samples, const T* input,
                                     const T* output, T* output_gradient,
                                     const LayerGradients<T>& gradients) {
  AddBiasBackward(samples, layer.outputs, layer.activation, output, output_gradient,
                  gradients.bias);
  MultiplyMatrices(KernelGradientOf(layer, samples, input, output_gradient, gradients.weights));
  if (gradients.input == nullptr) return;
  MultiplyMatrices(InputGradientOf(layer, samples, output_gradient, gradients.input));
}

template <typename T>
void CudaDevice<T>::FindStatistics(int64_t rows, int64_t channels, const T* input,
                                   const BatchStatistics<T>& statistics) {
  double* const scratch = Scratch(ColumnScratch(rows, channels));
  Run("FindStatistics", [&](cudaStream_t stream) {
    return cuda::FindStatistics(stream, rows, channels, input, scratch, statistics);
  });
}

template <typename T>
void CudaDevice<T>::Normalise(const Normalisation<T>& layer, const T* input, T* output) {
  Run("Normalise",
      [&](cudaStream_t stream) { return cuda::Normalise(stream, layer, input, output); });
}

template <typename T>
void CudaDevice<T>::NormaliseBackward(const Normalisation<T>& layer, bool of_batch, const T* input,
                                      const T* output, T* output_gradient,
                                      const LayerGradients<T>& gradients) {
  double* const scratch = Scratch(ColumnScratch(layer.rows, layer.channels));
  factors_.Resize(3, layer.channels);
  Run("NormaliseBackward", [&](cudaStream_t stream) {
    return cuda::NormaliseBackward(stream, layer, of_batch, input, output, output_gradient,
                                   gradients, scratch, factors_.data());
  });
}

template <typename T>
void CudaDevice<T>::Add(Activation activation, int64_t count, const T* a, const T* b, T* sum) {
  Run("Add", [&](cudaStream_t stream) { return cuda::Add(stream, activation, count, a, b, sum); });
}

template <typename T>
void CudaDevice<T>::ActivateBackward(Activation activation, int64_t count, const T* outputs,
                                     T* gradient) {
  Run("ActivateBackward", [&](cudaStream_t stream) {
    return cuda::ActivateBackward(stream, activation, count, outputs, gradient);
  });
}

template <typename T>
void CudaDevice<T>::Pool(Pooling pooling, const Window& window, int64_t samples, const T* input,
                         T* output, int32_t* chosen) {
  if (!Fits(window, samples, window.positions() * window.input.channels)) return;
  const Geometry geometry = GeometryOf(window);
  Run("Pool", [&](cudaStream_t stream) {
    if (pooling == Pooling::kMax) {
      return cuda::MaxPool(stream, geometry, samples, input, output, chosen);
    }
    return cuda::AveragePool(stream, geometry, samples, input, output);
  });
}

template <typename T>
void CudaDevice<T>::PoolBackward(Pooling pooling, const Window& window, int64_t samples,
                                 const int32_t* chosen, const T* output_gradient,
                                 T* input_gradient) {
  if (!Fits(window, samples, window.positions() * window.input.channels)) return;
  const Geometry geometry = GeometryOf(window);
  Run("PoolBackward", [&](cudaStream_t stream) {
    if (pooling == Pooling::kMax) {
      return cuda::MaxPoolBackward(stream, geometry, samples, chosen, output_gradient,
                                   input_gradient);
    }
    return cuda::AveragePoolBackward(stream, geometry, samples, output_gradient, input_gradient);
  });
}

template <typename T>
void CudaDevice<T>::Dropout(uint64_t key, double rate, int64_t count, const T* input, T* output) {
  Run("Dropout",
      [&](cudaStream_t stream) { return cuda::Dropout(stream, key, rate, count, input, output); });
}

template <typename T>
void CudaDevice<T>::ScaleToRanges(const RangeScaling<T>& layer, const T* input, T* output) {
  Run("ScaleToRanges", [&](cudaStream_t stream) {
    return cuda::ScaleToRanges(stream, layer, /*shifts=*/true, input, output);
  });
}

template <typename T>
void CudaDevice<T>::ScaleToRangesBackward(const RangeScaling<T>& layer, const T* output_gradient,
                                          T* input_gradient) {
  Run("ScaleToRangesBackward", [&](cudaStream_t stream) {
    return cuda::ScaleToRanges(stream, layer, /*shifts=*/false, output_gradient, input_gradient);
  });
}

template <typename T>
void CudaDevice<T>::Transpose(int64_t count, int64_t rows, int64_t columns, const T* from, T* to) {
  Run("Transpose",
      [&](cudaStream_t stream) { return cuda::Transpose(stream, count, rows, columns, from, to); });
}

template <typename T>
void CudaDevice<T>::FindLoss(const RowLossRule& rule, int64_t rows, int64_t columns,
                             const T* outputs, const double* targets, double divisor, double* total,
                             T* gradient) {
  double* const scratch = Scratch(LossScratch(rows));
  Run("FindLoss", [&](cudaStream_t stream) {
    return cuda::FindLoss(stream, rule, rows, columns, outputs, targets, divisor, scratch, total,
                          gradient);
  });
}

template <typename T>
void CudaDevice<T>::Penalise(double l2, int64_t count, const T* values, T* gradient) {
  if (penalty_terms_.size() == 0) {
    penalty_terms_.Resize(1, kPenaltyTerms);
    memory_->SetZero(penalty_terms_.data(), penalty_terms_.bytes());
  }
  Run("Penalise", [&](cudaStream_t stream) {
    return cuda::Penalise(stream, l2, count, values, gradient, penalty_terms_.data());
  });
}

template <typename T>
void CudaDevice<T>::TakePenalties(double* total) {
  if (penalty_terms_.size() == 0) return;
  double* const scratch = Scratch(kSumScratch);
  Run("TakePenalties", [&](cudaStream_t stream) {
    return cuda::TakePenalties(stream, penalty_terms_.data(), scratch, total);
  });
}

template <typename T>
void CudaDevice<T>::Update(const Optimizer& rule, absl::Span<const ArrayUpdate<T>> arrays) {
  Run("Update", [&](cudaStream_t stream) {
    return cuda::Update(stream, rule, arrays.data(), arrays.size());
  });
}

template <typename T>
void CudaDevice<T>::UpdateMovingAverage(T weight, int64_t count, const T* values, T* average) {
  Run("UpdateMovingAverage", [&](cudaStream_t stream) {
    return cuda::UpdateMovingAverage(stream, weight, count, values, average);
  });
}

template <typename T>
bool CudaDevice<T>::ArePacked(const Window& window) {
  return RowChannels(window) == window.input.channels &&
         (window.height * window.width == 1 || window.input.channels == 1);
}

template <typename T>
const T* CudaDevice<T>::PackWeights(const Convolution<T>& layer) {
  if (ArePacked(layer.window)) return layer.weights;
  packed_.Resize(layer.outputs, RowSize(layer.window));
  Run("PackWeights", [&](cudaStream_t stream) {
    return cuda::PackWeights(stream, GeometryOf(layer.window), layer.outputs, layer.weights,
                             packed_.data());
  });
  return packed_.data();
}

// Convolutions that are matrix products without Im2Col are left to cuBLAS. cuDNN's fast kernels
// need channels in fours. It cannot round factors of float32 further than to TF32.
template <typename T>
bool CudaDevice<T>::RunPlan(ConvolutionPass pass, const Convolution<T>& layer, int64_t samples,
                            const ConvolutionTensors& tensors) {
  const Window& window = layer.window;
  if (plans_ == nullptr || !memory_->works() || samples == 0 || IsPointwise(window) ||
      window.input.channels % 4 != 0 || layer.outputs % 4 != 0 ||
      !FitsIn32Bits(window, samples, window.positions() * layer.outputs)) {
    return false;
  }
  for (const void* tensor : {tensors.input, tensors.weights, tensors.output}) {
    if (reinterpret_cast<uintptr_t>(tensor) % kPlanAlignment != 0) return false;
  }
  const PlannedConvolution one = {
      window, samples, layer.outputs, pass,
      options_.precision == MatrixPrecision::kF32 ? ConvolutionType::kF32 : ConvolutionType::kTf32};
  memory_->compute();
  const absl::StatusOr<const ConvolutionPlan*> plan =
      memory_->Time("the choice of a plan of cuDNN", [&] { return plans_->Find(one); });
  absl::Status status = plan.status();
  if (status.ok()) {
    const int64_t bytes = (*plan)->workspace_bytes;
    constexpr int64_t kSize = sizeof(T);
    if (bytes > 0) rows_.Resize(1, (bytes + kSize - 1) / kSize);
    if (!memory_->works()) return true;
    status = memory_->Time("cudnnBackendExecute", [&] {
      return plans_->Execute(one, tensors, bytes > 0 ? rows_.data() : nullptr);
    });
  }
  if (!absl::IsResourceExhausted(status)) return status.ok();
  memory_->Check(cudaErrorMemoryAllocation, absl::StrCat("cuDNN: ", status.message()).c_str());
  return true;
}

template <typename T>
void CudaDevice<T>::Convolve(const Convolution<T>& layer, int64_t samples, const T* input,
                             T* output) {
  const Window& window = layer.window;
  const int64_t outputs = layer.outputs;
  const int64_t size = RowSize(window);
  if (!Fits(window, 1, window.positions() * size)) return;
  MatrixProduct<T> product;
  product.columns = outputs;
  product.inner = size;
  product.a_stride = size;
  product.b = PackWeights(layer);
  product.b_stride = size;
  product.transpose_b = true;
  product.c_stride = outputs;
  const bool is_planned =
      RunPlan(ConvolutionPass::kOutput, layer, samples, {input, product.b, output});
  ForEachSlice(window, is_planned ? 0 : samples, options_.row_bytes / int64_t{sizeof(T)},
               [&](int64_t first, int64_t count) {
                 product.rows = count * window.positions();
                 product.a = input + first * window.input.size();
                 product.c = output + first * window.positions() * outputs;
                 if (!IsPointwise(window)) {
                   rows_.Resize(product.rows, size);
                   Run("Im2Col", [&](cudaStream_t stream) {
                     return Im2Col(stream, GeometryOf(window), count, product.a, rows_.data());
                   });
                   product.a = rows_.data();
                 }
                 MultiplyMatrices(product);
               });
  Run("AddBias", [&](cudaStream_t stream) {
    return cuda::AddBias(stream, samples * window.positions(), outputs, layer.bias,
                         layer.activation, output);
  });
}

template <typename T>
void CudaDevice<T>::ConvolveBackward(const Convolution<T>& layer, int64_t samples, const T* input,
                                     const T* output, T* output_gradient,
                                     const LayerGradients<T>& gradients) {
  const Window& window = layer.window;
  const int64_t outputs = layer.outputs;
  const int64_t size = RowSize(window);
  if (!Fits(window, 1, window.positions() * size)) return;
  AddBiasBackward(samples * window.positions(), outputs, layer.activation, output, output_gradient,
                  gradients.bias);
  const bool in_order = ArePacked(window);
  if (!in_order) packed_gradient_.Resize(outputs, size);
  // The gradient by the weights is output_gradient^T rows; that by the rows is output_gradient
  // weights.
  MatrixProduct<T> by_weights;
  by_weights.rows = outputs;
  by_weights.columns = size;
  by_weights.a_stride = outputs;
  by_weights.transpose_a = true;
  by_weights.b_stride = size;
  by_weights.c = in_order ? gradients.weights : packed_gradient_.data();
  by_weights.c_stride = size;
  MatrixProduct<T> by_rows;
  by_rows.columns = size;
  by_rows.inner = outputs;
  by_rows.a_stride = outputs;
  by_rows.b = gradients.input == nullptr ? nullptr : PackWeights(layer);
  by_rows.b_stride = size;
  by_rows.c_stride = size;
  const bool has_weights = RunPlan(ConvolutionPass::kWeightGradient, layer, samples,
                                   {input, by_weights.c, output_gradient});
  const bool has_input =
      gradients.input == nullptr || RunPlan(ConvolutionPass::kInputGradient, layer, samples,
                                            {gradients.input, by_rows.b, output_gradient});
  ForEachSlice(window, has_weights && has_input ? 0 : samples,
               options_.row_bytes / int64_t{sizeof(T)}, [&](int64_t first, int64_t count) {
                 const T* images = input + first * window.input.size();
                 by_weights.inner = by_rows.rows = count * window.positions();
                 by_weights.a = by_rows.a = output_gradient + first * window.positions() * outputs;
                 by_weights.b = images;
                 if (!IsPointwise(window)) {
                   rows_.Resize(by_rows.rows, size);
                   by_weights.b = rows_.data();
                 }
                 if (!has_weights) {
                   if (!IsPointwise(window)) {
                     Run("Im2Col", [&](cudaStream_t stream) {
                       return Im2Col(stream, GeometryOf(window), count, images, rows_.data());
                     });
                   }
                   MultiplyMatrices(by_weights);
                   by_weights.accumulate = true;
                 }
                 if (has_input) return;
                 T* image_gradients = gradients.input + first * window.input.size();
                 // The rows are no longer needed: their memory is reused for their gradients.
                 by_rows.c = IsPointwise(window) ? image_gradients : rows_.data();
                 MultiplyMatrices(by_rows);
                 if (IsPointwise(window)) return;
                 Run("Col2Im", [&](cudaStream_t stream) {
                   return Col2Im(stream, GeometryOf(window), count, rows_.data(), image_gradients);
                 });
               });
  if (in_order) return;
  Run("UnpackWeights", [&](cudaStream_t stream) {
    return UnpackWeights(stream, GeometryOf(window), outputs, packed_gradient_.data(),
                         gradients.weights);
  });
}

template class CudaDevice<float>;
template class CudaDevice<double>;

}  // namespace syncgrads::cuda
