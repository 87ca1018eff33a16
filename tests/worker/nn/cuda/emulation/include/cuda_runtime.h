// The part of CUDA that kernels are compiled with, for the emulated device: see ../emulation.h.

#ifndef SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_CUDA_RUNTIME_H_
#define SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_CUDA_RUNTIME_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <typeinfo>

#include "cuda_runtime_api.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

// Each function rounds to nearest. Functions that fuse or approximate operations are missing on
// purpose.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float v) { return std::sqrt(v); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double v) { return std::sqrt(v); }

namespace syncgrads::emulation {

// Returns the bytes of the arguments. Each argument takes whole words of 8 bytes.
template <typename... Arguments>
std::string BytesOf(const Arguments&... arguments) {
  std::string bytes;
  const auto append = [&bytes](const auto& argument) {
    bytes.append(reinterpret_cast<const char*>(&argument), sizeof(argument));
    bytes.resize((bytes.size() + 7) / 8 * 8);
  };
  (append(arguments), ...);
  return bytes;
}

// The first argument of most kernels is the number of their rows, or of their numbers. Plants
// Fault::kLoseTail in them.
template <typename Argument>
Argument PlantInFirst(Argument argument, const char* kernel) {
  if constexpr (std::is_same_v<Argument, int64_t>) {
    if (HasFault(Fault::kLoseTail, [kernel] { return NameOfKernel(kernel); })) --argument;
  }
  return argument;
}

}  // namespace syncgrads::emulation

// Runs the kernel for each thread of each block, one after the other.
template <typename... Parameters, typename First, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               First given, Arguments... arguments) {
  const First first = syncgrads::emulation::PlantInFirst(given, typeid(kernel).name());
  const dim3 grid = config->gridDim;
  const dim3 block = config->blockDim;
  return syncgrads::emulation::QueueThreads(config->stream, grid, block, typeid(kernel).name(),
                                            syncgrads::emulation::BytesOf(first, arguments...),
                                            [=](const dim3& block_index, const dim3& thread_index) {
                                              gridDim = grid;
                                              blockDim = block;
                                              blockIdx = block_index;
                                              threadIdx = thread_index;
                                              kernel(first, arguments...);
                                            });
}

#endif  // SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_CUDA_RUNTIME_H_
