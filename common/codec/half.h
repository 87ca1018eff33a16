// The codecs f16 and bf16. codec.h describes their bytes.

#ifndef SYNCGRADS_COMMON_CODEC_HALF_H_
#define SYNCGRADS_COMMON_CODEC_HALF_H_

#include "common/codec/codec.h"
#include "common/dtype.h"

namespace syncgrads {

class HalfCodec : public BlockCodec {
 public:
  // `dtype` is f16 or bf16.
  explicit HalfCodec(DType dtype) : dtype_(dtype) {}

  size_t EncodedBytes(size_t count) const override { return 2 * count; }
  void Encode(const float* values, size_t count, std::byte* out) const override;
  absl::Status Check(const std::byte* encoded, size_t count) const override;
  void Decode(const std::byte* encoded, size_t count, float* values) const override;

 private:
  const DType dtype_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_HALF_H_
