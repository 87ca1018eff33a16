#include "common/codec/error_feedback.h"

#include <algorithm>

#include "common/codec/block_arithmetic.h"

namespace syncgrads {

bool EncodeBlockWithFeedback(const BlockCodec& codec, const std::byte* values,
                             const float* residual, size_t count, std::byte* out,
                             float* new_residual, FeedbackNorms& norms) {
  alignas(64) float sum[kCodecBlock];
  alignas(64) float decoded[kCodecBlock];
  if (!AddFinite(values, residual, count, sum)) return false;
  codec.Encode(sum, count, out);
  codec.Decode(out, count, decoded);
  Subtract(sum, decoded, count, new_residual);
  norms.values += SumOfSquares(values, count);
  norms.residual += SumOfSquares(reinterpret_cast<const std::byte*>(new_residual), count);
  return true;
}

bool EncodeSpanWithFeedback(const BlockCodec& codec, const std::byte* values, const float* residual,
                            size_t elements, std::byte* out, float* new_residual,
                            FeedbackNorms& norms) {
  for (size_t begin = 0; begin < elements; begin += kCodecBlock) {
    const size_t count = std::min(elements - begin, kCodecBlock);
    if (!EncodeBlockWithFeedback(codec, values + begin * sizeof(float),
                                 residual == nullptr ? nullptr : residual + begin, count, out,
                                 new_residual + begin, norms)) {
      return false;
    }
    out += codec.EncodedBytes(count);
  }
  return true;
}

}  // namespace syncgrads
