// The part of cuBLAS that this project uses, for the emulated device: see ../emulation.h.

#ifndef SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_CUBLAS_V2_H_
#define SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_CUBLAS_V2_H_

#include <cstddef>
#include <cstdint>

#include "cuda_runtime_api.h"

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_INTERNAL_ERROR = 14,
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t {
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
  CUBLAS_COMPUTE_64F = 70,
};
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1 };

struct EmulatedCublas;
using cublasHandle_t = EmulatedCublas*;

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle);
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes);
const char* cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transpose_a,
                               cublasOperation_t transpose_b, int64_t m, int64_t n, int64_t k,
                               const void* alpha, const void* a, cudaDataType_t a_type,
                               int64_t a_stride, const void* b, cudaDataType_t b_type,
                               int64_t b_stride, const void* beta, void* c, cudaDataType_t c_type,
                               int64_t c_stride, cublasComputeType_t compute,
                               cublasGemmAlgo_t algorithm);

#endif  // SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_CUBLAS_V2_H_
