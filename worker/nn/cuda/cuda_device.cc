#include "worker/nn/cuda/cuda_device.h"

#include <type_traits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/nn/cuda/geometry.h"

namespace syncgrads::cuda {
namespace {

// The size that NVIDIA recommends for the newest devices. With a workspace of its own, cuBLAS
// makes the same choices, and so gives the same bits, in every run.
constexpr int64_t kWorkspaceBytes = 32 << 20;

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
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<CudaMemory> memory, CudaMemory::Create(index));
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
      strips_(*memory_),
      sums_(*memory_),
      factors_(*memory_) {}

template <typename T>
absl::Status CudaDevice<T>::Open() {
  const cudaStream_t stream = memory_->compute();
  Check(cublas_.create(&handle_), "cublasCreate");
  if (handle_ == nullptr) return memory_->status();
  Check(cublas_.set_stream(handle_, stream), "cublasSetStream");
  workspace_.Resize(1, kWorkspaceBytes);
  Check(cublas_.set_workspace(handle_, workspace_.data(), kWorkspaceBytes), "cublasSetWorkspace");
  return memory_->status();
}

template <typename T>
CudaDevice<T>::~CudaDevice() {
  memory_->compute();
  if (handle_ != nullptr) cublas_.destroy(handle_);
}

template <typename T>
template <typename Launch>
void CudaDevice<T>::Run(const char* what, Launch launch) {
  if (!memory_->works()) return;
  memory_->Check(launch(memory_->compute()), what);
}

template <typename T>
void CudaDevice<T>::Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  memory_->Fail(absl::InternalError(absl::StrCat(what, ": ", cublas_.describe(status))));
}

// cuBLAS is column-major: it computes c^T = b^T a^T.
template <typename T>
void CudaDevice<T>::Multiply(const MatrixProduct<T>& p) {
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
  Check(cublas_.multiply(
            handle_, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
            p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, p.columns, p.rows, p.inner, &one, p.b, kType,
            p.b_stride, p.a, kType, p.a_stride, &kept, p.c, kType, p.c_stride,
            kFloat ? ComputeTypeOf(options_.precision) : CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

template <typename T>
void CudaDevice<T>::AddToRows(int64_t rows, int64_t columns, const T* addend, T* values) {
  Run("AddToRows",
      [&](cudaStream_t stream) { return cuda::AddToRows(stream, rows, columns, addend, values); });
}

template <typename T>
double* CudaDevice<T>::StripsOf(int64_t rows, int64_t columns) {
  strips_.Resize(StripsFor(rows, columns), columns);
  return strips_.data();
}

template <typename T>
void CudaDevice<T>::SumRows(int64_t rows, int64_t columns, const T* values, T* sums) {
  double* strips = StripsOf(rows, columns);
  Run("SumRows", [&](cudaStream_t stream) {
    return cuda::SumRows(stream, rows, columns, values, strips, sums);
  });
}

template <typename T>
void CudaDevice<T>::Add(int64_t count, const T* a, const T* b, T* sum) {
  Run("Add", [&](cudaStream_t stream) { return cuda::Add(stream, count, a, b, sum); });
}

template <typename T>
void CudaDevice<T>::MultiplyEach(int64_t count, const T* a, const T* b, T* product) {
  Run("MultiplyEach",
      [&](cudaStream_t stream) { return cuda::MultiplyEach(stream, count, a, b, product); });
}

template <typename T>
void CudaDevice<T>::AddScaled(int64_t count, T factor, const T* a, T* sum) {
  Run("AddScaled",
      [&](cudaStream_t stream) { return cuda::AddScaled(stream, count, factor, a, sum); });
}

template <typename T>
void CudaDevice<T>::UpdateMovingAverage(int64_t count, T step, T factor, const T* target,
                                        T* values) {
  Run("UpdateMovingAverage", [&](cudaStream_t stream) {
    return cuda::UpdateMovingAverage(stream, count, step, factor, target, values);
  });
}

template <typename T>
void CudaDevice<T>::Activate(Activation activation, int64_t count, T* values) {
  Run("Activate",
      [&](cudaStream_t stream) { return cuda::Activate(stream, activation, count, values); });
}

template <typename T>
void CudaDevice<T>::MultiplyByDerivative(Activation activation, int64_t count, const T* outputs,
                                         T* gradient) {
  Run("MultiplyByDerivative", [&](cudaStream_t stream) {
    return cuda::MultiplyByDerivative(stream, activation, count, outputs, gradient);
  });
}

template <typename T>
void CudaDevice<T>::DrawDropout(uint64_t key, double rate, int64_t count, T* factors) {
  Run("DrawDropout",
      [&](cudaStream_t stream) { return cuda::DrawDropout(stream, key, rate, count, factors); });
}

template <typename T>
void CudaDevice<T>::ScaleToRanges(int64_t rows, int64_t columns, const T* minimum, const T* maximum,
                                  const T* input, T* output) {
  Run("ScaleToRanges", [&](cudaStream_t stream) {
    return cuda::ScaleToRanges(stream, rows, columns, minimum, maximum, /*shifts=*/true, input,
                               output);
  });
}

template <typename T>
void CudaDevice<T>::ScaleToRangesBackward(int64_t rows, int64_t columns, const T* minimum,
                                          const T* maximum, const T* output_gradient,
                                          T* input_gradient) {
  Run("ScaleToRangesBackward", [&](cudaStream_t stream) {
    return cuda::ScaleToRanges(stream, rows, columns, minimum, maximum, /*shifts=*/false,
                               output_gradient, input_gradient);
  });
}

template <typename T>
void CudaDevice<T>::FindLosses(const RowLossRule& rule, int64_t rows, int64_t columns,
                               const T* outputs, const double* targets, double divisor,
                               double* losses, T* gradient) {
  Run("FindLosses", [&](cudaStream_t stream) {
    return cuda::FindLosses(stream, rule, rows, columns, outputs, targets, divisor, losses,
                            gradient);
  });
}

template <typename T>
void CudaDevice<T>::AddUp(int64_t count, double factor, const double* values, double* sum) {
  Run("AddUp",
      [&](cudaStream_t stream) { return cuda::AddUp(stream, count, factor, values, sum); });
}

template <typename T>
void CudaDevice<T>::Update(const Optimizer& rule, uint64_t step, int64_t count, const T* gradient,
                           T* values, T* const* slots) {
  Run("Update", [&](cudaStream_t stream) {
    return cuda::Update(stream, rule, step, count, gradient, values, slots);
  });
}

template <typename T>
void CudaDevice<T>::MaxPool(const Window& window, int64_t samples, const T* input, T* output,
                            int32_t* chosen) {
  Run("MaxPool", [&](cudaStream_t stream) {
    return cuda::MaxPool(stream, GeometryOf(window), samples, input, output, chosen);
  });
}

template <typename T>
void CudaDevice<T>::MaxPoolBackward(const Window& window, int64_t samples, const int32_t* chosen,
                                    const T* output_gradient, T* input_gradient) {
  Run("MaxPoolBackward", [&](cudaStream_t stream) {
    return cuda::MaxPoolBackward(stream, GeometryOf(window), samples, chosen, output_gradient,
                                 input_gradient);
  });
}

template <typename T>
void CudaDevice<T>::AveragePool(const Window& window, int64_t samples, const T* input, T* output) {
  Run("AveragePool", [&](cudaStream_t stream) {
    return cuda::AveragePool(stream, GeometryOf(window), samples, input, output);
  });
}

template <typename T>
void CudaDevice<T>::AveragePoolBackward(const Window& window, int64_t samples,
                                        const T* output_gradient, T* input_gradient) {
  Run("AveragePoolBackward", [&](cudaStream_t stream) {
    return cuda::AveragePoolBackward(stream, GeometryOf(window), samples, output_gradient,
                                     input_gradient);
  });
}

template <typename T>
void CudaDevice<T>::FindMoments(int64_t rows, int64_t channels, T epsilon, const T* input,
                                const BatchMoments<T>& moments, T* variance) {
  double* strips = StripsOf(rows, channels);
  Run("FindMoments", [&](cudaStream_t stream) {
    return cuda::FindMoments(stream, rows, channels, epsilon, input, strips, moments.mean,
                             moments.inverse_deviation, variance);
  });
}

template <typename T>
void CudaDevice<T>::InvertDeviations(int64_t channels, T epsilon, const T* variance,
                                     T* inverse_deviation) {
  Run("InvertDeviations", [&](cudaStream_t stream) {
    return cuda::InvertDeviations(stream, channels, epsilon, variance, inverse_deviation);
  });
}

template <typename T>
void CudaDevice<T>::Normalise(int64_t rows, int64_t channels, const BatchMoments<T>& moments,
                              const T* scale, const T* shift, const T* input, T* output) {
  Run("Normalise", [&](cudaStream_t stream) {
    return cuda::Normalise<T>(stream, rows, channels, moments.mean, moments.inverse_deviation,
                              scale, shift, input, output);
  });
}

template <typename T>
void CudaDevice<T>::NormaliseBackward(int64_t rows, int64_t channels,
                                      const BatchMoments<T>& moments, bool of_batch, const T* scale,
                                      const T* input, const T* output_gradient, T* scale_gradient,
                                      T* shift_gradient, T* input_gradient) {
  double* strips = StripsOf(rows, channels);
  sums_.Resize(2, channels);
  factors_.Resize(3, channels);
  Run("NormaliseBackward", [&](cudaStream_t stream) {
    const cudaError_t error = cuda::NormaliseBackwardSums<T>(
        stream, rows, channels, moments.mean, moments.inverse_deviation, input, output_gradient,
        strips, sums_.data(), scale_gradient, shift_gradient);
    if (error != cudaSuccess || input_gradient == nullptr) return error;
    return cuda::NormaliseBackward<T>(
        stream, rows, channels, moments.mean, moments.inverse_deviation, of_batch, scale, input,
        output_gradient, sums_.data(), factors_.data(), input_gradient);
  });
}

template <typename T>
void CudaDevice<T>::PixelsToPlanes(const Shape& shape, int64_t samples, const T* pixels,
                                   T* planes) {
  Run("PixelsToPlanes", [&](cudaStream_t stream) {
    return Transpose(stream, samples, shape.positions(), shape.channels, pixels, planes);
  });
}

template <typename T>
void CudaDevice<T>::PlanesToPixels(const Shape& shape, int64_t samples, const T* planes,
                                   T* pixels) {
  Run("PlanesToPixels", [&](cudaStream_t stream) {
    return Transpose(stream, samples, shape.channels, shape.positions(), planes, pixels);
  });
}

template <typename T>
const T* CudaDevice<T>::PackWeights(const Window& window, int64_t outputs, const T* weights) {
  const int64_t area = window.height * window.width;
  if (area == 1 || window.input.channels == 1) return weights;
  packed_.Resize(outputs, window.size());
  Run("PackWeights", [&](cudaStream_t stream) {
    return Transpose(stream, outputs, window.input.channels, area, weights, packed_.data());
  });
  return packed_.data();
}

template <typename T>
void CudaDevice<T>::Convolve(const Window& window, int64_t samples, int64_t outputs, const T* input,
                             const T* weights, T* output) {
  const int64_t size = window.size();
  MatrixProduct<T> product;
  product.columns = outputs;
  product.inner = size;
  product.a_stride = size;
  product.b = PackWeights(window, outputs, weights);
  product.b_stride = size;
  product.transpose_b = true;
  product.c_stride = outputs;
  ForEachSlice(window, samples, options_.row_bytes / int64_t{sizeof(T)},
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
                 Multiply(product);
               });
}

template <typename T>
void CudaDevice<T>::ConvolveBackward(const Window& window, int64_t samples, int64_t outputs,
                                     const T* input, const T* weights, const T* output_gradient,
                                     T* weights_gradient, T* input_gradient) {
  const int64_t size = window.size();
  const int64_t area = window.height * window.width;
  const bool in_order = area == 1 || window.input.channels == 1;
  if (!in_order) packed_gradient_.Resize(outputs, size);
  // The gradient by the weights is output_gradient^T rows; that by the rows is output_gradient
  // weights.
  MatrixProduct<T> by_weights;
  by_weights.rows = outputs;
  by_weights.columns = size;
  by_weights.a_stride = outputs;
  by_weights.transpose_a = true;
  by_weights.b_stride = size;
  by_weights.c = in_order ? weights_gradient : packed_gradient_.data();
  by_weights.c_stride = size;
  MatrixProduct<T> by_rows;
  by_rows.columns = size;
  by_rows.inner = outputs;
  by_rows.a_stride = outputs;
  by_rows.b = input_gradient == nullptr ? nullptr : PackWeights(window, outputs, weights);
  by_rows.b_stride = size;
  by_rows.c_stride = size;
  ForEachSlice(window, samples, options_.row_bytes / int64_t{sizeof(T)},
               [&](int64_t first, int64_t count) {
                 const T* images = input + first * window.input.size();
                 by_weights.inner = by_rows.rows = count * window.positions();
                 by_weights.a = by_rows.a = output_gradient + first * window.positions() * outputs;
                 by_weights.b = images;
                 if (!IsPointwise(window)) {
                   rows_.Resize(by_rows.rows, size);
                   Run("Im2Col", [&](cudaStream_t stream) {
                     return Im2Col(stream, GeometryOf(window), count, images, rows_.data());
                   });
                   by_weights.b = rows_.data();
                 }
                 Multiply(by_weights);
                 by_weights.accumulate = true;
                 if (input_gradient == nullptr) return;
                 T* image_gradients = input_gradient + first * window.input.size();
                 // The rows are no longer needed: their memory is reused for their gradients.
                 by_rows.c = IsPointwise(window) ? image_gradients : rows_.data();
                 Multiply(by_rows);
                 if (IsPointwise(window)) return;
                 Run("Col2Im", [&](cudaStream_t stream) {
                   return Col2Im(stream, GeometryOf(window), count, rows_.data(), image_gradients);
                 });
               });
  if (in_order) return;
  Run("UnpackWeights", [&](cudaStream_t stream) {
    return Transpose(stream, outputs, area, window.input.channels, packed_gradient_.data(),
                     weights_gradient);
  });
}

template class CudaDevice<float>;
template class CudaDevice<double>;

}  // namespace syncgrads::cuda
