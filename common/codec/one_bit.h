// The codec one-bit, with one bit for each element. codec.h describes its bytes.

#ifndef SYNCGRADS_COMMON_CODEC_ONE_BIT_H_
#define SYNCGRADS_COMMON_CODEC_ONE_BIT_H_

#include "common/codec/codec.h"

namespace syncgrads {

// Number of elements that share a scale. In larger groups, elements that are always large are
// delayed longer by error feedback, because the common scale must first grow to their magnitude.
inline constexpr size_t kOneBitGroup = 256;
// Number of partial sums that make the mean magnitude. The k-th sum adds the magnitudes of elements
// k, k + kOneBitSums, and so on in this order, each times 2^-8 so that no sum overflows. Then the
// second half of the sums is added to the first half until one sum is left, which is multiplied by
// 2^8 / elements.
inline constexpr size_t kOneBitSums = 16;

class OneBitCodec : public BlockCodec {
 public:
  size_t EncodedBytes(size_t count) const override;
  void Encode(const float* values, size_t count, std::byte* out) const override;
  absl::Status Check(const std::byte* encoded, size_t count) const override;
  void Decode(const std::byte* encoded, size_t count, float* values) const override;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_ONE_BIT_H_
