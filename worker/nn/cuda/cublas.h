// cuBLAS, loaded at run time. A program that can use it also starts where it is missing.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUBLAS_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUBLAS_H_

#include <cublas_v2.h>

#include "absl/status/statusor.h"

namespace syncgrads::cuda {

// The functions of cuBLAS that this program uses.
struct Cublas {
  decltype(&cublasCreate_v2) create;
  decltype(&cublasDestroy_v2) destroy;
  decltype(&cublasSetStream_v2) set_stream;
  decltype(&cublasSetWorkspace_v2) set_workspace;
  decltype(&cublasGemmEx_64) multiply;
  decltype(&cublasGetStatusString) describe;
};

// Loads the library on the first call, in the major version that this program was compiled with.
// Later calls return the same result. Unimplemented if it cannot be loaded; the message names
// the library and the reasons. Thread-safe.
absl::StatusOr<const Cublas*> LoadCublas();

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUBLAS_H_
