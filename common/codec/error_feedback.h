// Error feedback: the error of an encoding, the residual, is kept and added to the next values
// (Seide et al. 2014, Karimireddy et al. 2019). Nothing is lost; it is only sent later.
//
//   encoded   = Encode(values + residual)
//   residual' = values + residual - Decode(encoded)

#ifndef SYNCGRADS_COMMON_CODEC_ERROR_FEEDBACK_H_
#define SYNCGRADS_COMMON_CODEC_ERROR_FEEDBACK_H_

#include <cstddef>

#include "common/codec/codec.h"
#include "common/codec/residual_guard.h"

namespace syncgrads {

// Encodes one block of float32 `values`, which have any alignment, with error feedback, and adds
// the squares of the values and of the new residual to `norms`. `residual` may be null, which
// stands for zeros, or the same memory as `new_residual`. Returns false if values + residual is not
// finite: then nothing can be encoded, and the outputs are unspecified. Thread-safe.
bool EncodeBlockWithFeedback(const BlockCodec& codec, const std::byte* values,
                             const float* residual, size_t count, std::byte* out,
                             float* new_residual, FeedbackNorms& norms);

// Encodes a span of any length block by block, like EncodeBlockWithFeedback. Returns false if any
// block is not finite; then all outputs, including `norms`, are unspecified. Thread-safe.
bool EncodeSpanWithFeedback(const BlockCodec& codec, const std::byte* values, const float* residual,
                            size_t elements, std::byte* out, float* new_residual,
                            FeedbackNorms& norms);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_ERROR_FEEDBACK_H_
