#include "worker/nn/cpu/kernels.h"

namespace syncgrads {

template <typename T>
const CpuKernels<T>& ChooseCpuKernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    return Avx512Kernels<T>();
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Avx2Kernels<T>();
#endif
  return BaselineKernels<T>();
}

template const CpuKernels<float>& ChooseCpuKernels();
template const CpuKernels<double>& ChooseCpuKernels();

}  // namespace syncgrads
