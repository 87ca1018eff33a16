// The part of cuBLAS that this project uses, as plain loops on the emulated device.

#include <bit>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "worker/nn/cuda/bf16.h"
#include "worker/nn/cuda/cublas.h"

using syncgrads::cuda::Bf16;
using syncgrads::emulation::Call;
using syncgrads::emulation::Fault;
using syncgrads::emulation::HasFault;
using syncgrads::emulation::IsExhausted;
using syncgrads::emulation::Launch;

struct EmulatedCublas {
  cudaStream_t stream = nullptr;
  bool has_workspace = false;
};

namespace {

// Rounds to the nearest float with this number of fraction bits (ties to even), as tensor cores
// round their inputs.
float Round(float value, int fraction_bits) {
  const int dropped = 23 - fraction_bits;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t half = uint32_t{1} << (dropped - 1);
  bits += half - 1 + ((bits >> dropped) & 1);
  return std::bit_cast<float>(bits >> dropped << dropped);
}

template <typename T>
T Factor(T value, cublasComputeType_t compute) {
  if constexpr (std::is_same_v<T, float>) {
    if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) return Round(value, 10);
  }
  return value;
}

// T is the type of the factors, and C that of the result.
template <typename T, typename C>
struct Product {
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  double alpha;
  const T* a;
  int64_t a_stride;
  const T* b;
  int64_t b_stride;
  double beta;
  C* c;
  int64_t c_stride;
  cublasComputeType_t compute;
  // The planted fault.
  Fault fault = Fault::kNone;

  Launch launch() const {
    const int64_t results = m * n;
    const int64_t read =
        (m * k + k * n) * int64_t{sizeof(T)} + (beta == 0 ? 0 : results * int64_t{sizeof(C)});
    return {std::string("cublasGemmEx ") + (transpose_a ? 'T' : 'N') + (transpose_b ? 'T' : 'N'),
            static_cast<uint64_t>(read), results * sizeof(C),
            static_cast<uint64_t>(2 * results * k)};
  }

  // Matrices are stored by columns, as cuBLAS requires.
  void Compute() const {
    // The elements of a are read n times. So they are rounded once and stored by rows, in the order
    // of the summation.
    std::vector<T> rows(static_cast<size_t>(m * k));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t l = 0; l < k; ++l) {
        rows[i * k + l] = Factor(transpose_a ? a[l + i * a_stride] : a[i + l * a_stride], compute);
      }
    }
    std::vector<T> column(static_cast<size_t>(k));
    const int64_t columns = n - (fault == Fault::kLoseLastBlock ? 1 : 0);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        column[l] = Factor(transpose_b ? b[j + l * b_stride] : b[l + j * b_stride], compute);
      }
      for (int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          sum += double{rows[i * k + l]} * double{column[l]};
        }
        if (fault == Fault::kLoseTail && i == m - 1 && j == n - 1) continue;
        C& value = c[i + (j + (fault == Fault::kShiftBlock ? 1 : 0)) * c_stride];
        // If beta is 0, the old value is not read: it may be uninitialised.
        const double kept = beta == 0 ? 0.0 : beta * value;
        value = static_cast<C>(alpha * sum + kept);
      }
    }
  }
};

}  // namespace

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (IsExhausted(Call::kCublasCreate)) {
    syncgrads::emulation::SetLastError(cudaErrorMemoryAllocation);
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  // Handles are small, and are never destroyed.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  static auto& all = *new std::vector<std::unique_ptr<EmulatedCublas>>();
  all.push_back(std::make_unique<EmulatedCublas>());
  *handle = all.back().get();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }

// Resets the workspace, as the real function does.
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->has_workspace = false;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t) {
  handle->has_workspace = workspace != nullptr;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "invalid value";
}

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transpose_a,
                               cublasOperation_t transpose_b, int64_t m, int64_t n, int64_t k,
                               const void* alpha, const void* a, cudaDataType_t a_type,
                               int64_t a_stride, const void* b, cudaDataType_t b_type,
                               int64_t b_stride, const void* beta, void* c, cudaDataType_t c_type,
                               int64_t c_stride, cublasComputeType_t compute, cublasGemmAlgo_t) {
  const bool is_double = compute == CUBLAS_COMPUTE_64F;
  const bool is_bf16 = a_type == CUDA_R_16BF && compute == CUBLAS_COMPUTE_32F;
  const cudaDataType_t type = is_double ? CUDA_R_64F : is_bf16 ? CUDA_R_16BF : CUDA_R_32F;
  const bool ta = transpose_a == CUBLAS_OP_T, tb = transpose_b == CUBLAS_OP_T;
  // The checks of the real function.
  if (m <= 0 || n <= 0 || k <= 0 || a_type != type || b_type != type ||
      (c_type != type && !(is_bf16 && c_type == CUDA_R_32F)) || a_stride < (ta ? k : m) ||
      b_stride < (tb ? n : k) || c_stride < m || !handle->has_workspace) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (IsExhausted(Call::kCublas)) return CUBLAS_STATUS_ALLOC_FAILED;
  if (IsExhausted(Call::kCublasKernel)) {
    syncgrads::emulation::SetLastError(cudaErrorMemoryAllocation);
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  if (syncgrads::emulation::TakeBrokenCublas()) return CUBLAS_STATUS_INTERNAL_ERROR;
  const auto scalar = [is_double](const void* at) {
    return is_double ? *static_cast<const double*>(at) : *static_cast<const float*>(at);
  };
  const auto queue = [&]<typename T, typename C>(T, C) {
    Product<T, C> product = {ta,
                             tb,
                             m,
                             n,
                             k,
                             scalar(alpha),
                             static_cast<const T*>(a),
                             a_stride,
                             static_cast<const T*>(b),
                             b_stride,
                             scalar(beta),
                             static_cast<C*>(c),
                             c_stride,
                             compute};
    const syncgrads::emulation::Launch launch = product.launch();
    for (const Fault fault : {Fault::kShiftBlock, Fault::kLoseLastBlock, Fault::kLoseTail}) {
      if (HasFault(fault, [&launch] { return launch.name; })) product.fault = fault;
    }
    return syncgrads::emulation::Queue(handle->stream, launch, [product] {
      if (!syncgrads::emulation::Counts()) product.Compute();
    });
  };
  const cudaError_t error = is_double               ? queue(double{}, double{})
                            : !is_bf16              ? queue(float{}, float{})
                            : c_type == CUDA_R_16BF ? queue(Bf16{}, Bf16{})
                                                    : queue(Bf16{}, float{});
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

namespace syncgrads::cuda {

absl::StatusOr<const Cublas*> LoadCublas() {
  static constexpr Cublas kCublas = {cublasCreate_v2,    cublasDestroy_v2,
                                     cublasSetStream_v2, cublasSetWorkspace_v2,
                                     cublasGemmEx_64,    cublasGetStatusString};
  return &kCublas;
}

}  // namespace syncgrads::cuda
