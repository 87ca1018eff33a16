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

// The slots of one parameter array, in a struct that is passed to kernels by value.
template <typename T, int count>
struct Slots {
  T* at[count + 1];  // One more, because an array cannot be empty.
};

template <typename T, class Step>
cudaError_t UpdateEach(cudaStream_t stream, Step step, int64_t count, const T* gradient, T* values,
                       T* const* slots) {
  constexpr int kSlots = static_cast<int>(Step::kSlots);
  Slots<T, kSlots> all = {};
  for (int s = 0; s < kSlots; ++s) all.at[s] = slots[s];
  return ForEach(stream, count, [=] __device__(int64_t i) {
    T here[kSlots + 1];
    for (int s = 0; s < kSlots; ++s) here[s] = all.at[s][i];
    const T value = step.Update(RoundedOps<T>(), gradient[i], values[i], here);
    values[i] = OneNaN(value);
    for (int s = 0; s < kSlots; ++s) all.at[s][i] = OneNaN(here[s]);
  });
}

}  // namespace

template <typename T>
cudaError_t Update(cudaStream_t stream, const Optimizer& rule, uint64_t step, int64_t count,
                   const T* gradient, T* values, T* const* slots) {
  return std::visit(
      [&](const auto& r) {
        using Rule = std::decay_t<decltype(r)>;
        if constexpr (std::is_same_v<Rule, Lamb> || std::is_same_v<Rule, Lars>) {
          return cudaErrorInvalidValue;  // the rule needs norms
        } else {
          return UpdateEach(stream, StepOf<T>{step}(r), count, gradient, values, slots);
        }
      },
      rule);
}

#define SYNCGRADS_FOR_TYPE(T)                                                                  \
  template cudaError_t Update(cudaStream_t, const Optimizer&, uint64_t, int64_t, const T*, T*, \
                              T* const*);
SYNCGRADS_FOR_TYPE(float)
SYNCGRADS_FOR_TYPE(double)
#undef SYNCGRADS_FOR_TYPE

}  // namespace syncgrads::cuda
