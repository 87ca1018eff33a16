// int8 with a scale for each 256 elements; see codec.h for the bytes.

#ifndef SYNCGRADS_COMMON_CODEC_INT8_H_
#define SYNCGRADS_COMMON_CODEC_INT8_H_

#include "common/codec/codec.h"

namespace syncgrads {

// Elements that share a scale.
inline constexpr size_t kInt8Group = 256;
// Where the largest magnitude is smaller, so that 127 divided by it may not be
// finite, all become 0.
inline constexpr float kInt8Least = 0x1p-100f;
// What is larger is taken for this, or for a little more below zero, so that what is
// decoded is finite.
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
