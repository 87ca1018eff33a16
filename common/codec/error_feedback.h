// What rounding has lost, kept and added to what is sent next (Seide et al. 2014,
// Karimireddy et al. 2019): nothing is lost, only late.
//
//   sent = values + residual, encoded; residual' = values + residual - decoded(sent)

#ifndef SYNCGRADS_COMMON_CODEC_ERROR_FEEDBACK_H_
#define SYNCGRADS_COMMON_CODEC_ERROR_FEEDBACK_H_

#include <cstddef>

#include "common/codec/codec.h"

namespace syncgrads {

// Sums of squares over what has been encoded.
struct FeedbackNorms {
  double values = 0;
  double residual = 0;  // the new one
};

// Encodes a block of `values` (aligned in any way) and adds to `norms`. `residual`
// may be null, for zeros, or `new_residual`. Returns false where a sum is not finite:
// then there is nothing that can be encoded, and the outputs are anything.
bool EncodeBlockWithFeedback(const BlockCodec& codec, const std::byte* values,
                             const float* residual, size_t count, std::byte* out,
                             float* new_residual, FeedbackNorms& norms);

// The same of a span.
bool EncodeSpanWithFeedback(const BlockCodec& codec, const std::byte* values, const float* residual,
                            size_t elements, std::byte* out, float* new_residual,
                            FeedbackNorms& norms);

// Watches a residual, of a chunk, that error feedback should keep small, round by
// round, and replaces the codec by a milder one when it grows instead: when it has
// been larger than the values and has grown for kRounds rounds on end. How much
// larger it may be depends on the codec: top-k with fraction f keeps an element for
// 1/f rounds.
//
// A plain value, the same after the same rounds on every processor; part of what a
// server keeps over a crash.
class ResidualGuard {
 public:
  static constexpr int kRounds = 8;

  ResidualGuard() = default;
  explicit ResidualGuard(Codec codec) : codec_(codec) {}

  // What is to be used.
  Codec codec() const { return codec_; }

  // Takes note of a round that was encoded by codec(), or a milder one. Returns
  // whether codec() has changed. `planned` has the parameters.
  bool Observe(const FeedbackNorms& norms, const Encoding& planned);

  friend bool operator==(const ResidualGuard&, const ResidualGuard&) = default;

 private:
  Codec codec_ = Codec::kRaw;
  int grown_ = 0;
  // Norms: the largest of the values', which fades, and the last residual's.
  double values_ = 0;
  double residual_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_ERROR_FEEDBACK_H_
