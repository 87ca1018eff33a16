// What rounding has lost, kept and added to what is sent next (Seide et al. 2014,
// Karimireddy et al. 2019): nothing is lost, only late.
//
//   sent = values + residual, encoded; residual' = values + residual - decoded(sent)

#ifndef SYNCGRADS_COMMON_CODEC_ERROR_FEEDBACK_H_
#define SYNCGRADS_COMMON_CODEC_ERROR_FEEDBACK_H_

#include <cstddef>

#include "common/codec/codec.h"
#include "common/codec/residual_guard.h"

namespace syncgrads {

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

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_ERROR_FEEDBACK_H_
