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

// S is the type of the factors.
template <typename S>
cublasComputeType_t ComputeTypeOf(MatrixPrecision precision) {
  if (std::is_same_v<S, double>) return CUBLAS_COMPUTE_64F;
  const bool is_rounded = std::is_same_v<S, float> && precision != MatrixPrecision::kF32;
  return is_rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

template <typename T>
constexpr cudaDataType_t kCudaType = CUDA_R_32F;
template <>
constexpr cudaDataType_t kCudaType<double> = CUDA_R_64F;
template <>
constexpr cudaDataType_t kCudaType<Bf16> = CUDA_R_16BF;

}  // namespace

template <typename T, typename S>
absl::StatusOr<std::unique_ptr<CudaDevice<T, S>>> CudaDevice<T, S>::Create(
    int index, const CudaOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(const Cublas* cublas, LoadCublas());
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<CudaMemory> memory,
                             CudaMemory::Create(index, options.timeout));
  auto device = absl::WrapUnique(new CudaDevice(std::move(memory), *cublas, options));
  SYNCGRADS_RETURN_IF_ERROR(device->Open());
  return device;
}

template <typename T, typename S>
CudaDevice<T, S>::CudaDevice(std::unique_ptr<CudaMemory> memory, const Cublas& cublas,
                             const CudaOptions& options)
    : memory_(std::move(memory)),
      cublas_(cublas),
      options_(options),
      workspace_(*memory_),
      rows_(*memory_),
      packed_(*memory_),
      packed_gradient_(*memory_),
      planned_gradient_(*memory_),
      scratch_(*memory_),
      penalty_terms_(*memory_),
      factors_(*memory_) {}

template <typename T, typename S>
absl::Status CudaDevice<T, S>::Open() {
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
template <typename T, typename S>
void CudaDevice<T, S>::OpenPlans() {
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

template <typename T, typename S>
CudaDevice<T, S>::~CudaDevice() {
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

template <typename T, typename S>
template <typename Launch>
void CudaDevice<T, S>::Run(const char* what, Launch launch) {
  if (!memory_->works()) return;
  const cudaStream_t stream = memory_->compute();
  memory_->Run(what, [&] { return launch(stream); });
}

template <typename T, typename S>
template <typename Call>
void CudaDevice<T, S>::RunCublas(const char* what, Call call) {
  const cublasStatus_t status = memory_->Time(what, call);
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED || LacksMemory(status)) {
    return memory_->Check(cudaErrorMemoryAllocation, absl::StrCat("cuBLAS, in ", what).c_str());
  }
  memory_->Fail(absl::InternalError(absl::StrCat(what, ": ", cublas_.describe(status))));
}

template <typename T, typename S>
bool CudaDevice<T, S>::LacksMemory(cublasStatus_t status) {
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
template <typename T, typename S>
template <typename Result>
void CudaDevice<T, S>::MultiplyMatrices(const MatrixProduct<S, Result>& p) {
  if (!memory_->works() || p.rows == 0 || p.columns == 0) return;
  if (p.inner == 0) {
    if (p.accumulate) return;
    for (int64_t row = 0; row < p.rows; ++row) {
      memory_->SetZero(p.c + row * p.c_stride, static_cast<size_t>(p.columns) * sizeof(Result));
    }
    return;
  }
  const T one = 1;
  const T kept = p.accumulate ? T{1} : T{0};
  const cublasComputeType_t type = ComputeTypeOf<S>(options_.precision);
  memory_->compute();
  RunCublas("cublasGemmEx", [&] {
    return cublas_.multiply(handle_, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, p.columns, p.rows, p.inner,
                            &one, p.b, kCudaType<S>, p.b_stride, p.a, kCudaType<S>, p.a_stride,
                            &kept, p.c, kCudaType<Result>, p.c_stride, type, CUBLAS_GEMM_DEFAULT);
  });
}

template <typename T, typename S>
double* CudaDevice<T, S>::Scratch(int64_t count) {
  scratch_.Resize(1, count);
  return scratch_.data();
}

template <typename T, typename S>
bool CudaDevice<T, S>::Fits(const Window& window, int64_t samples, int64_t each) {
  if (FitsIn32Bits(window, samples, each)) return true;
  memory_->Fail(absl::InvalidArgumentError(
      absl::StrCat(samples, " images of shape ", ToString(window.input), " under a window of ",
                   window.height, "x", window.width,
                   " have 2^31 numbers or more, which a CUDA device cannot index: make the batch, "
                   "or its parts, smaller")));
  return false;
}

template <typename T, typename S>
void CudaDevice<T, S>::AddBiasBackward(int64_t rows, int64_t columns, Activation activation,
                                       const Stored<T>* outputs, Stored<T>* gradient,
                                       T* bias_gradient) {
  if (bias_gradient == nullptr) {
    return ActivateBackward(activation, rows * columns, outputs, gradient);
  }
  double* const scratch = Scratch(ColumnScratch(rows, columns));
  Run("AddBiasBackward", [&](cudaStream_t stream) {
    return cuda::AddBiasBackward(stream, rows, columns, activation, As<S>(outputs), As<S>(gradient),
                                 scratch, bias_gradient);
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Multiply(const Affine<T>& layer, int64_t samples, const Stored<T>* input,
                                Stored<T>* output) {
  MultiplyMatrices(OutputOf(layer, PackKernel(layer), samples, As<S>(input), As<S>(output)));
  Run("AddBias", [&](cudaStream_t stream) {
    return cuda::AddBias(stream, samples, layer.outputs, layer.bias, layer.activation,
                         As<S>(output));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::MultiplyBackward(const Affine<T>& layer, int64_t samples,
                                        const Stored<T>* input, const Stored<T>* output,
                                        Stored<T>* output_gradient,
                                        const LayerGradients<T>& gradients) {
  AddBiasBackward(samples, layer.outputs, layer.activation, output, output_gradient,
                  gradients.bias);
  MultiplyMatrices(
      KernelGradientOf(layer, samples, As<S>(input), As<S>(output_gradient), gradients.weights));
  if (gradients.input == nullptr) return;
  MultiplyMatrices(InputGradientOf(layer, PackedKernel(layer), samples, As<S>(output_gradient),
                                   As<S>(gradients.input)));
}

template <typename T, typename S>
void CudaDevice<T, S>::FindStatistics(int64_t rows, int64_t channels, const Stored<T>* input,
                                      const BatchStatistics<T>& statistics) {
  double* const scratch = Scratch(ColumnScratch(rows, channels));
  Run("FindStatistics", [&](cudaStream_t stream) {
    return cuda::FindStatistics(stream, rows, channels, As<S>(input), scratch, statistics);
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Normalise(const Normalisation<T>& layer, const Stored<T>* input,
                                 Stored<T>* output) {
  Run("Normalise", [&](cudaStream_t stream) {
    return cuda::Normalise(stream, layer, As<S>(input), As<S>(output));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::NormaliseBackward(const Normalisation<T>& layer, bool of_batch,
                                         const Stored<T>* input, const Stored<T>* output,
                                         Stored<T>* output_gradient,
                                         const LayerGradients<T>& gradients) {
  double* const scratch = Scratch(ColumnScratch(layer.rows, layer.channels));
  factors_.Resize(3, layer.channels);
  Run("NormaliseBackward", [&](cudaStream_t stream) {
    return cuda::NormaliseBackward(stream, layer, of_batch, As<S>(input), As<S>(output),
                                   As<S>(output_gradient), gradients, scratch, factors_.data());
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Add(Activation activation, int64_t count, const Stored<T>* a,
                           const Stored<T>* b, Stored<T>* sum) {
  Run("Add", [&](cudaStream_t stream) {
    return cuda::Add(stream, activation, count, As<S>(a), As<S>(b), As<S>(sum));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::ActivateBackward(Activation activation, int64_t count,
                                        const Stored<T>* outputs, Stored<T>* gradient) {
  Run("ActivateBackward", [&](cudaStream_t stream) {
    return cuda::ActivateBackward(stream, activation, count, As<S>(outputs), As<S>(gradient));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Pool(Pooling pooling, const Window& window, int64_t samples,
                            const Stored<T>* input, Stored<T>* output, int32_t* chosen) {
  if (!Fits(window, samples, window.positions() * window.input.channels)) return;
  const Geometry geometry = GeometryOf(window);
  Run("Pool", [&](cudaStream_t stream) {
    if (pooling == Pooling::kMax) {
      return cuda::MaxPool(stream, geometry, samples, As<S>(input), As<S>(output), chosen);
    }
    return cuda::AveragePool(stream, geometry, samples, As<S>(input), As<S>(output));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::PoolBackward(Pooling pooling, const Window& window, int64_t samples,
                                    const int32_t* chosen, const Stored<T>* output_gradient,
                                    Stored<T>* input_gradient) {
  if (!Fits(window, samples, window.positions() * window.input.channels)) return;
  const Geometry geometry = GeometryOf(window);
  Run("PoolBackward", [&](cudaStream_t stream) {
    if (pooling == Pooling::kMax) {
      return cuda::MaxPoolBackward(stream, geometry, samples, chosen, As<S>(output_gradient),
                                   As<S>(input_gradient));
    }
    return cuda::AveragePoolBackward(stream, geometry, samples, As<S>(output_gradient),
                                     As<S>(input_gradient));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Dropout(uint64_t key, double rate, int64_t count, const Stored<T>* input,
                               Stored<T>* output) {
  Run("Dropout", [&](cudaStream_t stream) {
    return cuda::Dropout(stream, key, rate, count, As<S>(input), As<S>(output));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::ScaleToRanges(const RangeScaling<T>& layer, const Stored<T>* input,
                                     Stored<T>* output) {
  Run("ScaleToRanges", [&](cudaStream_t stream) {
    return cuda::ScaleToRanges(stream, layer, /*shifts=*/true, As<S>(input), As<S>(output));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::ScaleToRangesBackward(const RangeScaling<T>& layer,
                                             const Stored<T>* output_gradient,
                                             Stored<T>* input_gradient) {
  Run("ScaleToRangesBackward", [&](cudaStream_t stream) {
    return cuda::ScaleToRanges(stream, layer, /*shifts=*/false, As<S>(output_gradient),
                               As<S>(input_gradient));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Transpose(int64_t count, int64_t rows, int64_t columns,
                                 const Stored<T>* from, Stored<T>* to) {
  Run("Transpose", [&](cudaStream_t stream) {
    return cuda::Transpose(stream, count, rows, columns, As<S>(from), As<S>(to));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::FindLoss(const RowLossRule& rule, int64_t rows, int64_t columns,
                                const Stored<T>* outputs, const double* targets, double divisor,
                                double* total, Stored<T>* gradient) {
  double* const scratch = Scratch(LossScratch(rows));
  Run("FindLoss", [&](cudaStream_t stream) {
    return cuda::FindLoss(stream, rule, rows, columns, As<S>(outputs), targets, divisor, scratch,
                          total, As<S>(gradient));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Penalise(double l2, int64_t count, const T* values, T* gradient) {
  if (penalty_terms_.size() == 0) {
    penalty_terms_.Resize(1, kPenaltyTerms);
    memory_->SetZero(penalty_terms_.data(), penalty_terms_.bytes());
  }
  Run("Penalise", [&](cudaStream_t stream) {
    return cuda::Penalise(stream, l2, count, values, gradient, penalty_terms_.data());
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::TakePenalties(double* total) {
  if (penalty_terms_.size() == 0) return;
  double* const scratch = Scratch(kSumScratch);
  Run("TakePenalties", [&](cudaStream_t stream) {
    return cuda::TakePenalties(stream, penalty_terms_.data(), scratch, total);
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Update(const Optimizer& rule, absl::Span<const ArrayUpdate<T>> arrays) {
  Run("Update", [&](cudaStream_t stream) {
    return cuda::Update(stream, rule, arrays.data(), arrays.size());
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Accumulate(int64_t count, const T* values, T* sum) {
  Run("Accumulate", [&](cudaStream_t stream) {
    return cuda::Add(stream, Activation::kIdentity, count, sum, values, sum);
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::UpdateMovingAverage(T weight, int64_t count, const T* values, T* average) {
  Run("UpdateMovingAverage", [&](cudaStream_t stream) {
    return cuda::UpdateMovingAverage(stream, weight, count, values, average);
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::Store(int64_t count, const T* from, Stored<T>* to) {
  if constexpr (std::is_same_v<T, S>) {
    memory_->Copy(from, static_cast<size_t>(count) * sizeof(T), to);
  } else {
    Run("Store", [&](cudaStream_t stream) { return Convert(stream, count, from, As<S>(to)); });
  }
}

template <typename T, typename S>
void CudaDevice<T, S>::Load(int64_t count, const Stored<T>* from, T* to) {
  if constexpr (std::is_same_v<T, S>) {
    memory_->Copy(from, static_cast<size_t>(count) * sizeof(T), to);
  } else {
    Run("Load", [&](cudaStream_t stream) { return Convert(stream, count, As<S>(from), to); });
  }
}

template <typename T, typename S>
void CudaDevice<T, S>::StorePixels(int64_t count, int64_t channels, const unsigned char* pixels,
                                   const T* numbers, Stored<T>* to) {
  Run("StorePixels", [&](cudaStream_t stream) {
    return cuda::StorePixels(stream, count, channels, pixels, numbers, As<S>(to));
  });
}

template <typename T, typename S>
bool CudaDevice<T, S>::AreInOrder(const Window& window) {
  return RowChannels(window) == window.input.channels &&
         (window.height * window.width == 1 || window.input.channels == 1);
}

template <typename T, typename S>
S* CudaDevice<T, S>::RoomForPacked(DeviceMatrix<T>* packed, int64_t rows, int64_t columns) {
  if (packed == nullptr) {
    packed_.Resize(rows, columns);
    return packed_.data();
  }
  packed->Resize(rows, columns);
  return As<S>(packed->data());
}

template <typename T, typename S>
const S* CudaDevice<T, S>::PackWeights(const Convolution<T>& layer) {
  if constexpr (std::is_same_v<T, S>) {
    if (AreInOrder(layer.window)) return layer.weights;
  }
  S* const packed = RoomForPacked(layer.packed, layer.outputs, RowSize(layer.window));
  Run("PackWeights", [&](cudaStream_t stream) {
    return cuda::PackWeights(stream, GeometryOf(layer.window), layer.outputs, layer.weights,
                             packed);
  });
  return packed;
}

template <typename T, typename S>
const S* CudaDevice<T, S>::PackKernel(const Affine<T>& layer) {
  if constexpr (std::is_same_v<T, S>) {
    return layer.kernel;
  } else {
    S* const packed = RoomForPacked(layer.packed, layer.inputs, layer.outputs);
    Run("PackKernel", [&](cudaStream_t stream) {
      return Convert(stream, layer.inputs * layer.outputs, layer.kernel, packed);
    });
    return packed;
  }
}

template <typename T, typename S>
const S* CudaDevice<T, S>::PackedWeights(const Convolution<T>& layer) {
  const bool is_kept = layer.packed != nullptr && layer.packed->size() > 0;
  return is_kept ? As<S>(layer.packed->data()) : PackWeights(layer);
}

template <typename T, typename S>
const S* CudaDevice<T, S>::PackedKernel(const Affine<T>& layer) {
  const bool is_kept = layer.packed != nullptr && layer.packed->size() > 0;
  return is_kept ? As<S>(layer.packed->data()) : PackKernel(layer);
}

// Convolutions that are matrix products without Im2Col are left to cuBLAS. cuDNN's fast kernels
// need rows of channels that are multiples of 16 bytes, for double there are none.
template <typename T, typename S>
bool CudaDevice<T, S>::RunPlan(ConvolutionPass pass, const Convolution<T>& layer, int64_t samples,
                               const ConvolutionTensors& tensors) {
  constexpr int64_t kPackSize = 16 / sizeof(S);
  const Window& window = layer.window;
  if (plans_ == nullptr || !memory_->works() || samples == 0 || IsPointwise(window) ||
      window.input.channels % kPackSize != 0 || layer.outputs % kPackSize != 0 ||
      !FitsIn32Bits(window, samples, window.positions() * layer.outputs)) {
    return false;
  }
  for (const void* tensor : {tensors.input, tensors.weights, tensors.output}) {
    if (reinterpret_cast<uintptr_t>(tensor) % kPlanAlignment != 0) return false;
  }
  ConvolutionType type = ConvolutionType::kBf16;
  if (std::is_same_v<S, T>) {
    type = options_.precision == MatrixPrecision::kF32 ? ConvolutionType::kF32
                                                       : ConvolutionType::kTf32;
  }
  const PlannedConvolution one = {window, samples, layer.outputs, pass, type};
  memory_->compute();
  const absl::StatusOr<const ConvolutionPlan*> plan =
      memory_->Time("the choice of a plan of cuDNN", [&] { return plans_->Find(one); });
  absl::Status status = plan.status();
  if (status.ok()) {
    const int64_t bytes = (*plan)->workspace_bytes;
    constexpr int64_t kSize = sizeof(S);
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

template <typename T, typename S>
void CudaDevice<T, S>::Convolve(const Convolution<T>& layer, int64_t samples,
                                const Stored<T>* input, Stored<T>* output) {
  const Window& window = layer.window;
  const int64_t outputs = layer.outputs;
  const int64_t size = RowSize(window);
  if (!Fits(window, 1, window.positions() * size)) return;
  MatrixProduct<S> product;
  product.columns = outputs;
  product.inner = size;
  product.a_stride = size;
  product.b = PackWeights(layer);
  product.b_stride = size;
  product.transpose_b = true;
  product.c_stride = outputs;
  const bool is_planned =
      RunPlan(ConvolutionPass::kOutput, layer, samples, {input, product.b, output});
  ForEachSlice(window, is_planned ? 0 : samples, options_.row_bytes / int64_t{sizeof(S)},
               [&](int64_t first, int64_t count) {
                 product.rows = count * window.positions();
                 product.a = As<S>(input) + first * window.input.size();
                 product.c = As<S>(output) + first * window.positions() * outputs;
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
                         layer.activation, As<S>(output));
  });
}

template <typename T, typename S>
void CudaDevice<T, S>::ConvolveBackward(const Convolution<T>& layer, int64_t samples,
                                        const Stored<T>* input, const Stored<T>* output,
                                        Stored<T>* output_gradient,
                                        const LayerGradients<T>& gradients) {
  const Window& window = layer.window;
  const int64_t outputs = layer.outputs;
  const int64_t size = RowSize(window);
  if (!Fits(window, 1, window.positions() * size)) return;
  AddBiasBackward(samples * window.positions(), outputs, layer.activation, output, output_gradient,
                  gradients.bias);
  const bool in_order = AreInOrder(window);
  if (!in_order) packed_gradient_.Resize(outputs, size);
  // The gradient by the weights is output_gradient^T rows; that by the rows is output_gradient
  // weights.
  MatrixProduct<S, T> by_weights;
  by_weights.rows = outputs;
  by_weights.columns = size;
  by_weights.a_stride = outputs;
  by_weights.transpose_a = true;
  by_weights.b_stride = size;
  by_weights.c = in_order ? gradients.weights : packed_gradient_.data();
  by_weights.c_stride = size;
  MatrixProduct<S> by_rows;
  by_rows.columns = size;
  by_rows.inner = outputs;
  by_rows.a_stride = outputs;
  by_rows.b = gradients.input == nullptr ? nullptr : PackedWeights(layer);
  by_rows.b_stride = size;
  by_rows.c_stride = size;
  // cuDNN's gradients of weights have the type of the activations.
  S* planned = nullptr;
  if constexpr (std::is_same_v<T, S>) {
    planned = by_weights.c;
  } else if (plans_ != nullptr) {
    planned_gradient_.Resize(outputs, size);
    planned = planned_gradient_.data();
  }
  const bool has_weights =
      RunPlan(ConvolutionPass::kWeightGradient, layer, samples, {input, planned, output_gradient});
  const bool has_input =
      gradients.input == nullptr || RunPlan(ConvolutionPass::kInputGradient, layer, samples,
                                            {gradients.input, by_rows.b, output_gradient});
  ForEachSlice(window, has_weights && has_input ? 0 : samples,
               options_.row_bytes / int64_t{sizeof(S)}, [&](int64_t first, int64_t count) {
                 const S* images = As<S>(input) + first * window.input.size();
                 by_weights.inner = by_rows.rows = count * window.positions();
                 by_weights.a = by_rows.a =
                     As<S>(output_gradient) + first * window.positions() * outputs;
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
                 S* image_gradients = As<S>(gradients.input) + first * window.input.size();
                 // The rows are no longer needed: their memory is reused for their gradients.
                 by_rows.c = IsPointwise(window) ? image_gradients : rows_.data();
                 MultiplyMatrices(by_rows);
                 if (IsPointwise(window)) return;
                 Run("Col2Im", [&](cudaStream_t stream) {
                   return Col2Im(stream, GeometryOf(window), count, rows_.data(), image_gradients);
                 });
               });
  const auto unpack = [&](const auto* packed) {
    Run("UnpackWeights", [&](cudaStream_t stream) {
      return UnpackWeights(stream, GeometryOf(window), outputs, packed, gradients.weights);
    });
  };
  if (has_weights && !std::is_same_v<T, S>) return unpack(planned);
  if (!in_order) unpack(packed_gradient_.data());
}

template class CudaDevice<float>;
template class CudaDevice<double>;
template class CudaDevice<float, Bf16>;

}  // namespace syncgrads::cuda
