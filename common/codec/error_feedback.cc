#include "common/codec/error_feedback.h"

#include <algorithm>
#include <cmath>

#include "common/codec/block_arithmetic.h"

namespace syncgrads {
namespace {

// Of the norm of the values, by which theirs is remembered from round to round: they
// get smaller as training goes on, and a residual follows late.
constexpr double kFading = 0.95;

// How many times as large as the values a residual may be.
double LimitOf(Codec codec, const Encoding& planned) {
  switch (codec) {
    case Codec::kTopK:
      return 1 / planned.fraction;
    case Codec::kOneBit:
      return 32;
    default:
      return 0.5;
  }
}

}  // namespace

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

bool ResidualGuard::Observe(const FeedbackNorms& norms, const Encoding& planned) {
  const double residual = std::sqrt(norms.residual);
  values_ = std::max(std::sqrt(norms.values), values_ * kFading);
  const bool grows = residual > residual_ && residual > LimitOf(codec_, planned) * values_;
  residual_ = residual;
  grown_ = grows ? grown_ + 1 : 0;
  if (grown_ < kRounds || codec_ == Codec::kRaw) return false;
  grown_ = 0;
  codec_ = MilderThan(codec_);
  return true;
}

}  // namespace syncgrads
