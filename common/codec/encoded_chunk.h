// The payload of a chunk that is encoded: its spans one after the other, each encoded
// by itself, without those that are absent.

#ifndef SYNCGRADS_COMMON_CODEC_ENCODED_CHUNK_H_
#define SYNCGRADS_COMMON_CODEC_ENCODED_CHUNK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/codec/codec.h"
#include "common/layout.h"
#include "common/wire/frame.h"
#include "common/wire/piece_cursor.h"

namespace syncgrads {

// Reads the blocks of an encoded payload in their order, where they lie. The pieces
// must outlive it, and be as long as what is read.
class EncodedReader {
 public:
  EncodedReader(const BlockCodec& codec, const Pieces& payload)
      : codec_(codec), cursor_(&payload) {}

  // As BlockCodec's, of the next block, of `count` elements.
  absl::Status Check(size_t count) { return codec_.Check(Next(count), count); }
  void Decode(size_t count, float* values) { codec_.Decode(Next(count), count, values); }

 private:
  const std::byte* Next(size_t count) { return cursor_.Take(codec_.EncodedBytes(count), scratch_); }

  const BlockCodec& codec_;
  PieceCursor cursor_;
  // No whole block is longer than its elements are.
  std::byte scratch_[kCodecBlock * sizeof(float)];
};

// `absent` has the numbers of spans, ascending.
uint64_t EncodedChunkBytes(const BlockCodec& codec, const Chunk& chunk,
                           absl::Span<const uint32_t> absent = {});

// The bytes that a payload of the whole chunk can have at most: in the planned encoding,
// in a milder one, or as it is. Short spans take more bytes encoded than as they are.
uint64_t MostEncodedBytes(const Encoding& planned, const Chunk& chunk);

// InvalidArgument, naming the length or the span and what is wrong in it, unless every
// block of the payload can be decoded.
absl::Status CheckEncodedChunk(const BlockCodec& codec, const Layout& layout, const Chunk& chunk,
                               const Pieces& payload, absl::Span<const uint32_t> absent = {});

// Decodes a payload without absent spans, which is as long as it has to be, to all of
// the chunk's elements.
void DecodeChunk(const BlockCodec& codec, const Chunk& chunk, const Pieces& payload, float* values);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_ENCODED_CHUNK_H_
