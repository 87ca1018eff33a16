#include "server/core/closing/encoded_closing.h"

#include <cstring>

#include "common/aligned_buffer.h"
#include "common/codec/block_arithmetic.h"
#include "common/codec/codec.h"
#include "common/codec/error_feedback.h"
#include "common/kernels/reduce.h"
#include "server/core/closing/decoded_segments.h"

namespace syncgrads::server {
namespace {

// Closes a round with a raw result that includes the whole residual.
Closed CloseWithResidual(const Chunk& chunk, Reduction reduction,
                         absl::Span<const Seated> contributions, const float* residual, Slot& out) {
  Closed closed;
  auto* const left = reinterpret_cast<float*>(out.residual.data());
  closed.counts = ForEachDecodedBlock(
      chunk, contributions,
      [&](absl::Span<const WeightedSource> sources, uint64_t first, uint64_t elements) {
        auto* const values = reinterpret_cast<float*>(out.values.data()) + first;
        if (sources.empty()) {
          std::memset(values, 0, elements * sizeof(float));
          std::memcpy(left + first, residual + first, elements * sizeof(float));
          return;
        }
        auto* const bytes = reinterpret_cast<std::byte*>(values);
        Reduce(DType::kF32, reduction, sources, elements, bytes);
        closed.finite &= AddFinite(bytes, residual + first, elements, values);
        std::memset(left + first, 0, elements * sizeof(float));
      });
  if (AnybodyContributed(closed.counts)) closed.value_bytes = chunk.bytes();
  return closed;
}

// Returns false if a sum is not finite. Then the contents of `out` are undefined.
bool CloseEncoded(const BlockCodec& codec, const Chunk& chunk, Reduction reduction,
                  absl::Span<const Seated> contributions, const float* residual, Slot& out,
                  FeedbackNorms& norms, Closed& closed) {
  auto* const left = reinterpret_cast<float*>(out.residual.data());
  alignas(64) float values[kCodecBlock];
  auto* const bytes = reinterpret_cast<std::byte*>(values);
  bool finite = true;
  size_t encoded = 0;
  closed.counts = ForEachDecodedBlock(
      chunk, contributions,
      [&](absl::Span<const WeightedSource> sources, uint64_t first, uint64_t elements) {
        if (!finite) return;
        std::byte* const to = out.values.data() + encoded;
        encoded += codec.EncodedBytes(elements);
        if (sources.empty()) {
          std::memset(values, 0, elements * sizeof(float));
          codec.Encode(values, elements, to);
          std::memcpy(left + first, residual + first, elements * sizeof(float));
          return;
        }
        Reduce(DType::kF32, reduction, sources, elements, bytes);
        finite = EncodeBlockWithFeedback(codec, bytes, residual + first, elements, to, left + first,
                                         norms);
      });
  if (AnybodyContributed(closed.counts)) closed.value_bytes = encoded;
  return finite;
}

// Returns true if contributions are to be encoded, but all of them, at least one, are raw.
bool AllAreRaw(const Chunk& chunk, absl::Span<const Seated> contributions) {
  if (chunk.compression.push.is_raw()) return false;
  bool any = false;
  for (const Seated& seated : contributions) {
    if (seated.contribution->skip) continue;
    if (seated.contribution->codec != Codec::kRaw) return false;
    any = true;
  }
  return any;
}

}  // namespace

Closed CloseEncodedReduction(const Chunk& chunk, Reduction reduction,
                             absl::Span<const Seated> contributions, const Slot* previous,
                             Slot& out, bool check_finite) {
  const Encoding& planned = chunk.compression.result;
  AlignedBuffer zeros;
  if (previous == nullptr) {
    zeros = AlignedBuffer(chunk.bytes());
    std::memset(zeros.data(), 0, zeros.size());
  }
  const auto* const residual = reinterpret_cast<const float*>(
      previous == nullptr ? zeros.data() : previous->residual.data());
  out.guard = previous == nullptr ? ResidualGuard(planned.codec) : previous->guard;
  if (AllAreRaw(chunk, contributions)) {
    out.guard = ResidualGuard(planned.codec);
    return CloseWithResidual(chunk, reduction, contributions, residual, out);
  }
  const auto codec = MakeCodec(EncodingOf(out.guard.codec(), planned));
  if (codec == nullptr) return CloseWithResidual(chunk, reduction, contributions, residual, out);
  FeedbackNorms norms;
  Closed closed;
  closed.codec = out.guard.codec();
  if (CloseEncoded(*codec, chunk, reduction, contributions, residual, out, norms, closed)) {
    if (closed.value_bytes > 0) out.guard.Observe(norms, planned);
    return closed;
  }
  // The result is raw, and the residual does not change.
  std::memcpy(out.residual.data(), residual, chunk.bytes());
  return CloseReduction(chunk, reduction, contributions, out, check_finite);
}

}  // namespace syncgrads::server
