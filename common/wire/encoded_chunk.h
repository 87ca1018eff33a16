// The payload of an encoded chunk: its spans one after the other, each encoded by itself, without
// absent spans.

#ifndef SYNCGRADS_COMMON_WIRE_ENCODED_CHUNK_H_
#define SYNCGRADS_COMMON_WIRE_ENCODED_CHUNK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/codec/codec.h"
#include "common/group/layout.h"
#include "common/wire/frame.h"
#include "common/wire/piece_cursor.h"

namespace syncgrads {

// Reads the blocks of an encoded payload one after the other, without copying those that lie in one
// piece. The codec and the pieces must outlive the reader. The payload must be as long as the
// blocks that are read. Not thread-safe.
class EncodedReader {
 public:
  EncodedReader(const BlockCodec& codec, const Pieces& payload)
      : codec_(codec), cursor_(&payload) {}

  // Check and Decode call the codec's functions for the next block, which has `count` elements, and
  // advance to the block after it.
  absl::Status Check(size_t count) { return codec_.Check(Next(count), count); }
  void Decode(size_t count, float* values) { codec_.Decode(Next(count), count, values); }

 private:
  const std::byte* Next(size_t count) { return cursor_.Take(codec_.EncodedBytes(count), scratch_); }

  const BlockCodec& codec_;
  PieceCursor cursor_;
  // This is enough for every block: no codec makes a whole block longer than its raw elements.
  std::byte scratch_[kCodecBlock * sizeof(float)];
};

// Returns the length in bytes of a chunk's encoded payload. `absent` has the positions of the
// absent spans, ascending.
uint64_t EncodedChunkBytes(const BlockCodec& codec, const Chunk& chunk,
                           absl::Span<const uint32_t> absent = {});

// Returns the maximum length in bytes of the whole chunk's payload: in the planned encoding, in a
// milder one, or raw. Short spans may be longer encoded than raw.
uint64_t MostEncodedBytes(const Encoding& planned, const Chunk& chunk);

// Checks the length of the payload and each of its blocks. `absent` has the positions of the absent
// spans, ascending.
//
// Errors:
//   InvalidArgument  the payload has the wrong length: the message has both lengths; or a block
//                    cannot be decoded: the message has the tensor, the block and the reason
absl::Status CheckEncodedChunk(const BlockCodec& codec, const Layout& layout, const Chunk& chunk,
                               const Pieces& payload, absl::Span<const uint32_t> absent = {});

// Decodes a payload of the right length, without absent spans, to all of the chunk's elements.
void DecodeChunk(const BlockCodec& codec, const Chunk& chunk, const Pieces& payload, float* values);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_WIRE_ENCODED_CHUNK_H_
