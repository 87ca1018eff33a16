// Arithmetic on blocks of float32, the same bits on every processor.

#ifndef SYNCGRADS_COMMON_CODEC_BLOCK_ARITHMETIC_H_
#define SYNCGRADS_COMMON_CODEC_BLOCK_ARITHMETIC_H_

#include <cstddef>
#include <cstdint>

namespace syncgrads {

// Pointers to floats are aligned for a float; pointers to bytes in any way. Outputs
// may be one of the inputs, and overlap them in no other way. Thread-safe.

// out = max(-limit, min(in, limit)). `in` has no NaN.
void Clamp(const float* in, size_t count, float limit, float* out);

// out = a + b; b may be null, for zeros. Returns whether every sum is finite.
bool AddFinite(const std::byte* a, const float* b, size_t count, float* out);

// out = a - b.
void Subtract(const float* a, const float* b, size_t count, float* out);

// The sum of in[i]^2 in float64: of kSquareSums sums, of which the k-th adds elements
// k, k + kSquareSums, ...; then the second half is added to the first until one is
// left.
inline constexpr size_t kSquareSums = 16;
double SumOfSquares(const std::byte* in, size_t count);

// Whether one of `count` 16-bit numbers has all bits of `mask`.
bool AnyHasAllOf(const std::byte* in, size_t count, uint16_t mask);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_BLOCK_ARITHMETIC_H_
