#include <cstdint>
#include <limits>
#include <type_traits>
#include <variant>

#include "common/optim/power.h"
#include "common/update_rule.h"
#include "worker/nn/cuda/kernels.h"
#include "worker/nn/cuda/launch.h"

namespace syncgrads::cuda {
namespace {

#define SYNCGRADS_STEP_INLINE __device__ inline
#include "common/optim/update_steps-inl.h"
#undef SYNCGRADS_STEP_INLINE

// Arithmetic on one number, which the compiler neither fuses nor approximates, whatever its
// options.
template <typename T>
struct RoundedOps;

template <>
struct RoundedOps<float> {
  __device__ float Set(float v) const { return v; }
  __device__ float Add(float a, float b) const { return __fadd_rn(a, b); }
  __device__ float Sub(float a, float b) const { return __fsub_rn(a, b); }
  __device__ float Mul(float a, float b) const { return __fmul_rn(a, b); }
  __device__ float Div(float a, float b) const { return __fdiv_rn(a, b); }
  __device__ float Sqrt(float v) const { return __fsqrt_rn(v); }
  __device__ float Sign(float v) const { return v > 0 ? 1 : v < 0 ? -1 : v; }
};

template <>
struct RoundedOps<double> {
  __device__ double Set(double v) const { return v; }
  __device__ double Add(double a, double b) const { return __dadd_rn(a, b); }
  __device__ double Sub(double a, double b) const { return __dsub_rn(a, b); }
  __device__ double Mul(double a, double b) const { return __dmul_rn(a, b); }
  __device__ double Div(double a, double b) const { return __ddiv_rn(a, b); }
  __device__ double Sqrt(double v) const { return __dsqrt_rn(v); }
  __device__ double Sign(double v) const { return v > 0 ? 1 : v < 0 ? -1 : v; }
};

// Replaces every NaN by the quiet NaN without sign and payload, as on the CPU.
template <typename T>
__device__ T OneNaN(T value) {
  return value != value ? std::numeric_limits<T>::quiet_NaN() : value;
}

// Several arrays are updated by one launch, because most arrays of a model are small. A block
// updates kNumbersInBlock numbers of one array.
constexpr int kArraysInLaunch = 32;
constexpr int64_t kNumbersInBlock = 4096;

// The arrays of a launch, in a struct that is passed to the kernel by value.
template <typename T>
struct Arrays {
  const T* gradient[kArraysInLaunch];
  T* values[kArraysInLaunch];
  T* slots[kArraysInLaunch][kMostSlots];
  int64_t count[kArraysInLaunch];
  unsigned first_block[kArraysInLaunch + 1];
};

template <typename T, class Step>
__global__ void UpdateArrays(Step step, Arrays<T> arrays) {
  constexpr int kSlots = static_cast<int>(Step::kSlots);
  static_assert(kSlots <= kMostSlots);
  int a = 0;
  while (arrays.first_block[a + 1] <= blockIdx.x) ++a;
  const int64_t begin = (blockIdx.x - arrays.first_block[a]) * kNumbersInBlock;
  const int64_t count = arrays.count[a];
  const int64_t end = begin + kNumbersInBlock < count ? begin + kNumbersInBlock : count;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    T here[kSlots + 1];  // One more, because an array cannot be empty.
    for (int s = 0; s < kSlots; ++s) here[s] = arrays.slots[a][s][i];
    const T value = step.Update(RoundedOps<T>(), arrays.gradient[a][i], arrays.values[a][i], here);
    arrays.values[a][i] = OneNaN(value);
    for (int s = 0; s < kSlots; ++s) arrays.slots[a][s][i] = OneNaN(here[s]);
  }
}

// Updates as many arrays as one launch can, from the first on: those with the same step. Sets
// `taken` to their number.
template <typename T, class Step>
cudaError_t UpdateSome(cudaStream_t stream, const Step& step, const ArrayUpdate<T>* updates,
                       size_t count, size_t& taken) {
  Arrays<T> arrays = {};
  for (taken = 0; taken < count && taken < kArraysInLaunch; ++taken) {
    const ArrayUpdate<T>& update = updates[taken];
    if (update.step != updates[0].step) break;
    arrays.gradient[taken] = update.gradient;
    arrays.values[taken] = update.values;
    for (int s = 0; s < kMostSlots; ++s) arrays.slots[taken][s] = update.slots[s];
    arrays.count[taken] = update.count;
    const int64_t blocks = (update.count + kNumbersInBlock - 1) / kNumbersInBlock;
    arrays.first_block[taken + 1] = arrays.first_block[taken] + static_cast<unsigned>(blocks);
  }
  const unsigned blocks = arrays.first_block[taken];
  if (blocks == 0) return cudaSuccess;
  return Launch(stream, dim3(blocks), dim3(static_cast<unsigned>(kThreads)), UpdateArrays<T, Step>,
                step, arrays);
}

}  // namespace

template <typename T>
cudaError_t Update(cudaStream_t stream, const Optimizer& rule, const ArrayUpdate<T>* arrays,
                   size_t count) {
  return std::visit(
      [&](const auto& r) {
        using Rule = std::decay_t<decltype(r)>;
        cudaError_t error = cudaSuccess;
        if constexpr (std::is_same_v<Rule, Lamb> || std::is_same_v<Rule, Lars>) {
          error = cudaErrorInvalidValue;  // the rule needs norms
        } else {
          size_t taken = 0;
          for (size_t i = 0; i < count && error == cudaSuccess; i += taken) {
            error = UpdateSome(stream, StepOf<T>{arrays[i].step}(r), arrays + i, count - i, taken);
          }
        }
        return error;
      },
      rule);
}

#define SYNCGRADS_FOR_TYPE(T) \
  template cudaError_t Update(cudaStream_t, const Optimizer&, const ArrayUpdate<T>*, size_t);
SYNCGRADS_FOR_TYPE(float)
SYNCGRADS_FOR_TYPE(double)
#undef SYNCGRADS_FOR_TYPE

}  // namespace syncgrads::cuda
