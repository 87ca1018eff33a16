// The codec int8, with a scale for each 256 elements. codec.h describes its bytes.

#ifndef SYNCGRADS_COMMON_CODEC_INT8_H_
#define SYNCGRADS_COMMON_CODEC_INT8_H_

#include "common/codec/codec.h"

namespace syncgrads {

// Number of elements that share a scale.
inline constexpr size_t kInt8Group = 256;
// If the largest magnitude of a group is below this, all its elements become 0, because 127 divided
// by it might not be finite.
inline constexpr float kInt8Least = 0x1p-100f;
// Magnitudes above this are clamped, so that decoded values are finite: positive numbers to this,
// negative numbers to at most 128/127 of it.
inline constexpr float kInt8Most = 0x1p126f;

class Int8Codec : public BlockCodec {
 public:
  size_t EncodedBytes(size_t count) const override;
  void Encode(const float* values, size_t count, std::byte* out) const override;
  absl::Status Check(const std::byte* encoded, size_t count) const override;
  void Decode(const std::byte* encoded, size_t count, float* values) const override;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_INT8_H_
