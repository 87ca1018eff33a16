#include "client/rounds/compressor.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/codec/block_arithmetic.h"
#include "common/codec/error_feedback.h"
#include "common/wire/encoded_chunk.h"

namespace syncgrads::client {
namespace {

// Calls `encode` for each span of the chunk that is not absent, with its values, its residual, its
// number of elements, and the memory for its next residual. Keeps the residuals of absent spans.
// Stops and returns false as soon as `encode` does.
bool ForEachSpan(const Chunk& chunk, absl::Span<const uint32_t> absent_spans,
                 absl::Span<const absl::Span<const std::byte>> values,
                 const std::vector<float>& residual, std::vector<float>& next_residual,
                 absl::FunctionRef<bool(const std::byte*, const float*, size_t, float*)> encode) {
  size_t absent = 0;
  for (uint32_t s = 0; s < chunk.spans.size(); ++s) {
    const Span& span = chunk.spans[s];
    const float* const from = residual.data() + span.chunk_offset;
    float* const next = next_residual.data() + span.chunk_offset;
    if (absent < absent_spans.size() && absent_spans[absent] == s) {
      ++absent;
      std::copy_n(from, span.elements, next);
    } else if (!encode(values[s - absent].data(), from, span.elements, next)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Compressor::Compressor(const GroupPlan& plan) : plan_(plan), states_(plan.layout.chunks().size()) {
  for (uint32_t c = 0; c < states_.size(); ++c) {
    const Compression& planned = plan_.layout.chunk(ChunkId{c}).compression;
    states_[c].kept.guard = ResidualGuard(planned.push.codec);
    states_[c].received = planned.result.codec;
  }
}

std::optional<Compressor::Encoded> Compressor::Encode(
    ChunkId id, absl::Span<const uint32_t> absent_spans,
    absl::Span<const absl::Span<const std::byte>> values, bool uncompressed) {
  const Chunk& chunk = plan_.layout.chunk(id);
  const Encoding& planned = chunk.compression.push;
  State& state = states_[ToNumber(id)];
  if (uncompressed) {
    std::optional<Encoded> sum = AddResidual(id, absent_spans, values);
    if (!sum.has_value() && !state.kept.residual.empty()) return std::nullopt;
    state.next.guard = ResidualGuard(planned.codec);
    state.pending = true;
    return sum;
  }
  const auto codec = MakeCodec(EncodingOf(state.kept.guard.codec(), planned));
  if (codec == nullptr) return AddResidual(id, absent_spans, values);
  if (state.kept.residual.empty()) {
    state.kept.residual.resize(chunk.elements);
    state.next.residual.resize(chunk.elements);
  }
  Encoded encoded;
  encoded.codec = state.kept.guard.codec();
  encoded.size = EncodedChunkBytes(*codec, chunk, absent_spans);
  encoded.bytes.reset(new std::byte[encoded.size]);
  std::byte* out = encoded.bytes.get();
  FeedbackNorms norms;
  const auto encode = [&](const std::byte* span, const float* residual, size_t elements,
                          float* next) {
    const bool finite = EncodeSpanWithFeedback(*codec, span, residual, elements, out, next, norms);
    out += EncodedSpanBytes(*codec, elements);
    return finite;
  };
  if (!ForEachSpan(chunk, absent_spans, values, state.kept.residual, state.next.residual, encode)) {
    return std::nullopt;
  }
  state.next.guard = state.kept.guard;
  if (state.next.guard.Observe(norms, planned)) {
    encoded.notice = absl::StrCat("contributions to ", NameOf(id), " are sent as ",
                                  syncgrads::NameOf(state.next.guard.codec()),
                                  " from now on: ", syncgrads::NameOf(encoded.codec),
                                  " loses too much precision");
  }
  state.pending = true;
  return encoded;
}

std::optional<Compressor::Encoded> Compressor::AddResidual(
    ChunkId id, absl::Span<const uint32_t> absent_spans,
    absl::Span<const absl::Span<const std::byte>> values) {
  State& state = states_[ToNumber(id)];
  if (state.kept.residual.empty()) {
    state.next.residual.clear();
    return std::nullopt;
  }
  const Chunk& chunk = plan_.layout.chunk(id);
  Encoded sum;
  for (const absl::Span<const std::byte>& one : values) sum.size += one.size();
  sum.bytes.reset(new std::byte[sum.size]);
  auto* out = reinterpret_cast<float*>(sum.bytes.get());
  const auto add = [&out](const std::byte* span, const float* residual, size_t elements,
                          float* next) {
    const bool finite = AddFinite(span, residual, elements, out);
    std::fill_n(next, elements, 0.0f);
    out += elements;
    return finite;
  };
  if (!ForEachSpan(chunk, absent_spans, values, state.kept.residual, state.next.residual, add)) {
    return std::nullopt;
  }
  if (absent_spans.empty()) state.next.residual.clear();
  state.next.guard = state.kept.guard;
  state.pending = true;
  return sum;
}

void Compressor::Commit(ChunkId chunk) {
  State& state = states_[ToNumber(chunk)];
  if (state.pending) std::swap(state.kept, state.next);
  state.pending = false;
}

void Compressor::Discard(ChunkId chunk) { states_[ToNumber(chunk)].pending = false; }

size_t Compressor::ResultBytes(ChunkId id, Codec used) const {
  const Chunk& chunk = plan_.layout.chunk(id);
  const auto codec = MakeCodec(EncodingOf(used, chunk.compression.result));
  return codec == nullptr ? chunk.bytes() : EncodedChunkBytes(*codec, chunk);
}

absl::Status Compressor::CheckResult(ChunkId id, Codec used, const Pieces& payload) const {
  const Chunk& chunk = plan_.layout.chunk(id);
  if (absl::Status status = CheckUsed(used, chunk.compression.result); !status.ok()) return status;
  const auto codec = MakeCodec(EncodingOf(used, chunk.compression.result));
  if (codec == nullptr || payload.empty()) return absl::OkStatus();
  return CheckEncodedChunk(*codec, plan_.layout, chunk, payload);
}

AlignedBuffer Compressor::Decode(ChunkId id, Codec used, const Pieces& payload) const {
  const Chunk& chunk = plan_.layout.chunk(id);
  AlignedBuffer decoded(chunk.bytes());
  DecodeChunk(*MakeCodec(EncodingOf(used, chunk.compression.result)), chunk, payload,
              reinterpret_cast<float*>(decoded.data()));
  return decoded;
}

std::string Compressor::Received(ChunkId chunk, Codec codec) {
  Codec& received = states_[ToNumber(chunk)].received;
  const Codec before = std::exchange(received, codec);
  if (before == codec) return "";
  return absl::StrCat("results of ", NameOf(chunk), " are now sent as ", syncgrads::NameOf(codec),
                      ", previously as ", syncgrads::NameOf(before));
}

std::string Compressor::NameOf(ChunkId id) const {
  const Chunk& chunk = plan_.layout.chunk(id);
  const std::string& first = plan_.layout.tensor(chunk.spans.front().tensor).name;
  const std::string& last = plan_.layout.tensor(chunk.spans.back().tensor).name;
  return absl::StrCat("group \"", plan_.spec.name, "\", chunk ", ToNumber(id), " (",
                      first == last ? absl::StrCat("tensor \"", first, "\"")
                                    : absl::StrCat("from tensor \"", first, "\" to \"", last, "\""),
                      ")");
}

}  // namespace syncgrads::client
