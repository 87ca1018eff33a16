// cuBLAS, found when a program runs: programs that can use it start without it.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUBLAS_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUBLAS_H_

#include <cublas_v2.h>

#include "absl/status/statusor.h"

namespace syncgrads::cuda {

// Its functions that are used here.
struct Cublas {
  decltype(&cublasCreate_v2) create;
  decltype(&cublasDestroy_v2) destroy;
  decltype(&cublasSetStream_v2) set_stream;
  decltype(&cublasSetWorkspace_v2) set_workspace;
  decltype(&cublasGemmEx_64) multiply;
  decltype(&cublasGetStatusString) describe;
};

// Looks for the library of the version that this program was compiled with, once.
// Unimplemented if it is not there; says what was looked for and where.
absl::StatusOr<const Cublas*> LoadCublas();

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUBLAS_H_
