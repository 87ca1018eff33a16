// One bit for each element; see codec.h for the bytes.

#ifndef SYNCGRADS_COMMON_CODEC_ONE_BIT_H_
#define SYNCGRADS_COMMON_CODEC_ONE_BIT_H_

#include "common/codec/codec.h"

namespace syncgrads {

// Elements that share a scale. With more of them, elements that are always large wait
// for longer: the scale has to become as large as they are.
inline constexpr size_t kOneBitGroup = 256;
// The mean is taken of so many sums, in lanes: the k-th adds the elements k,
// k + kOneBitSums, ... in this order, each times 2^-8 (so that no sum overflows); then
// the second half of the sums is added to the first until one is left, which is
// multiplied by 2^8 / elements.
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
