// Arithmetic on blocks of float32. Every processor computes the same bits.

#ifndef SYNCGRADS_COMMON_CODEC_BLOCK_ARITHMETIC_H_
#define SYNCGRADS_COMMON_CODEC_BLOCK_ARITHMETIC_H_

#include <cstddef>
#include <cstdint>

namespace syncgrads {

// In all functions below, float pointers have the alignment of float, and byte pointers have any
// alignment. An output may be the same memory as an input, but must not overlap one in any other
// way. All functions are thread-safe.

// Computes out = max(-limit, min(in, limit)). `in` must not have a NaN.
void Clamp(const float* in, size_t count, float limit, float* out);

// Computes out = a + b. `b` may be null, which stands for zeros. Returns whether every sum is
// finite.
bool AddFinite(const std::byte* a, const float* b, size_t count, float* out);

// Computes out = a - b.
void Subtract(const float* a, const float* b, size_t count, float* out);

// Returns the sum of in[i]^2 over `count` float32 elements, in float64. The k-th of kSquareSums
// partial sums adds elements k, k + kSquareSums, and so on. Then the second half of the sums is
// added to the first half until one sum is left.
inline constexpr size_t kSquareSums = 16;
double SumOfSquares(const std::byte* in, size_t count);

// Returns whether any of `count` 16-bit numbers has all bits of `mask`, which must not be 0.
bool AnyHasAllOf(const std::byte* in, size_t count, uint16_t mask);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_BLOCK_ARITHMETIC_H_
