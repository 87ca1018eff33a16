// bfloat16: the upper half of a float32, as a type of storage.

#ifndef SYNCGRADS_WORKER_NN_CUDA_BF16_H_
#define SYNCGRADS_WORKER_NN_CUDA_BF16_H_

#include <cstdint>
#include <cstring>

#include "worker/nn/loss_kind.h"

namespace syncgrads::cuda {

// A number that is stored in 16 bits. It has no arithmetic of its own: kernels compute with float.
struct Bf16 {
  uint16_t bits;

  Bf16() = default;
  // Rounds to nearest, ties to even. Every NaN becomes the same one.
  SYNCGRADS_HOST_DEVICE explicit Bf16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    uint32_t all;
    std::memcpy(&all, &value, sizeof(all));
    const uint32_t rounded = all + 0x7fff + ((all >> 16) & 1);
    bits = value != value ? uint16_t{0x7fff} : static_cast<uint16_t>(rounded >> 16);
#endif
  }
  SYNCGRADS_HOST_DEVICE operator float() const {  // NOLINT(google-explicit-constructor): exact
    const uint32_t all = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &all, sizeof(value));
    return value;
  }
};

// The type that kernels compute with if numbers are stored as S.
template <typename S>
struct ComputedType {
  using Type = S;
};
template <>
struct ComputedType<Bf16> {
  using Type = float;
};
template <typename S>
using Computed = typename ComputedType<S>::Type;

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_BF16_H_
