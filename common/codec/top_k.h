// The codec top-k, which sends the largest elements of a block. codec.h describes its bytes.

#ifndef SYNCGRADS_COMMON_CODEC_TOP_K_H_
#define SYNCGRADS_COMMON_CODEC_TOP_K_H_

#include "common/codec/codec.h"

namespace syncgrads {

// Number of columns: the search sees a whole block as rows of this many elements (top_k.cc).
inline constexpr size_t kTopKColumns = 128;

class TopKCodec : public BlockCodec {
 public:
  // `fraction` is above 0 and at most 0.5.
  explicit TopKCodec(double fraction) : fraction_(fraction) {}

  // Returns how many of `count` elements are sent; at least one.
  size_t Kept(size_t count) const;

  size_t EncodedBytes(size_t count) const override;
  void Encode(const float* values, size_t count, std::byte* out) const override;
  absl::Status Check(const std::byte* encoded, size_t count) const override;
  void Decode(const std::byte* encoded, size_t count, float* values) const override;

 private:
  const double fraction_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_TOP_K_H_
