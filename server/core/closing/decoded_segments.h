// Walks several contributions to a chunk side by side, when some of them may be encoded.
//
// ForEachSegment (segments.h) yields segments of any length. This walk yields the codec's blocks,
// span by span, because each block is decoded by itself. It decodes a block to a buffer that stays
// in a cache until the block has been added.

#ifndef SYNCGRADS_SERVER_CORE_CLOSING_DECODED_SEGMENTS_H_
#define SYNCGRADS_SERVER_CORE_CLOSING_DECODED_SEGMENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/codec/codec.h"
#include "common/group/layout.h"
#include "common/kernels/reduce.h"
#include "common/wire/encoded_chunk.h"
#include "common/wire/piece_cursor.h"
#include "server/core/closing/closing.h"

namespace syncgrads::server {

// One contribution, and the walk's position in it. Not thread-safe.
class DecodedWalk {
 public:
  DecodedWalk(const Contribution& contribution, const Encoding& planned)
      : contribution_(contribution),
        codec_(MakeCodec(EncodingOf(contribution.codec, planned))),
        cursor_(&contribution.payload.pieces) {
    if (codec_ != nullptr) encoded_.emplace(*codec_, contribution.payload.pieces);
  }
  DecodedWalk(const DecodedWalk&) = delete;
  DecodedWalk& operator=(const DecodedWalk&) = delete;

  double weight() const { return contribution_.weight; }

  // Returns true if the contribution has this span. Call it once for each span, in ascending order.
  bool IsPresentIn(uint32_t span) {
    const std::vector<uint32_t>& absent = contribution_.absent_spans;
    if (absent_passed_ == absent.size() || absent[absent_passed_] != span) return true;
    ++absent_passed_;
    return false;
  }

  // Returns the next block, of `count` float32 elements. It is valid until the next call.
  const std::byte* Next(size_t count) {
    auto* const block = reinterpret_cast<std::byte*>(block_);
    if (!encoded_.has_value()) return cursor_.Take(count * sizeof(float), block);
    encoded_->Decode(count, block_);
    return block;
  }

 private:
  const Contribution& contribution_;
  const std::unique_ptr<const BlockCodec> codec_;
  size_t absent_passed_ = 0;
  PieceCursor cursor_;  // reads a raw payload
  std::optional<EncodedReader> encoded_;
  alignas(64) float block_[kCodecBlock];
};

// Calls `segment(sources, first_element, elements)` for each block of each span, in order. The
// chunk's dtype is f32. `sources` are the contributions that have the span, in the order of
// `contributions`; there may be none. Returns the number of contributors to each span.
template <typename Segment>
std::vector<uint32_t> ForEachDecodedBlock(const Chunk& chunk,
                                          absl::Span<const Seated> contributions, Segment segment) {
  std::vector<std::unique_ptr<DecodedWalk>> walks;
  for (const Seated& seated : contributions) {
    if (seated.contribution->skip) continue;
    walks.push_back(std::make_unique<DecodedWalk>(*seated.contribution, chunk.compression.push));
  }
  std::vector<uint32_t> counts(chunk.spans.size());
  absl::InlinedVector<DecodedWalk*, 8> present;
  absl::InlinedVector<WeightedSource, 8> sources;
  for (uint32_t s = 0; s < chunk.spans.size(); ++s) {
    const Span& span = chunk.spans[s];
    present.clear();
    for (const std::unique_ptr<DecodedWalk>& walk : walks) {
      if (walk->IsPresentIn(s)) present.push_back(walk.get());
    }
    counts[s] = static_cast<uint32_t>(present.size());
    for (uint64_t begin = 0; begin < span.elements; begin += kCodecBlock) {
      const uint64_t elements = std::min<uint64_t>(span.elements - begin, kCodecBlock);
      sources.clear();
      for (DecodedWalk* walk : present) sources.push_back({walk->Next(elements), walk->weight()});
      segment(absl::Span<const WeightedSource>(sources), span.chunk_offset + begin, elements);
    }
  }
  return counts;
}

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSING_DECODED_SEGMENTS_H_
