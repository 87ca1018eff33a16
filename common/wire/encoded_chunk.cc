#include "common/wire/encoded_chunk.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

// Calls `present(span)` for each span that is not in `absent`. Stops at the first error and returns
// it.
template <typename Present>
absl::Status ForEachPresent(const Chunk& chunk, absl::Span<const uint32_t> absent,
                            Present present) {
  size_t passed = 0;
  for (uint32_t s = 0; s < chunk.spans.size(); ++s) {
    if (passed < absent.size() && absent[passed] == s) {
      ++passed;
      continue;
    }
    if (absl::Status status = present(chunk.spans[s]); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t EncodedChunkBytes(const BlockCodec& codec, const Chunk& chunk,
                           absl::Span<const uint32_t> absent) {
  uint64_t bytes = 0;
  (void)ForEachPresent(chunk, absent, [&](const Span& span) {
    bytes += EncodedSpanBytes(codec, span.elements);
    return absl::OkStatus();
  });
  return bytes;
}

uint64_t MostEncodedBytes(const Encoding& planned, const Chunk& chunk) {
  uint64_t most = chunk.bytes();
  for (Codec used = planned.codec; used != Codec::kRaw; used = MilderThan(used)) {
    most = std::max(most, EncodedChunkBytes(*MakeCodec(EncodingOf(used, planned)), chunk));
  }
  return most;
}

absl::Status CheckEncodedChunk(const BlockCodec& codec, const Layout& layout, const Chunk& chunk,
                               const Pieces& payload, absl::Span<const uint32_t> absent) {
  const uint64_t expected = EncodedChunkBytes(codec, chunk, absent);
  if (TotalBytes(payload) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("an encoded payload has ", TotalBytes(payload),
                                                   " bytes, its elements need ", expected));
  }
  EncodedReader reader(codec, payload);
  return ForEachPresent(chunk, absent, [&](const Span& span) {
    for (uint64_t begin = 0; begin < span.elements; begin += kCodecBlock) {
      const absl::Status status =
          reader.Check(std::min<uint64_t>(span.elements - begin, kCodecBlock));
      if (status.ok()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", layout.tensor(span.tensor).name, "\", block at element ",
                       span.tensor_offset + begin, ": ", status.message()));
    }
    return absl::OkStatus();
  });
}

void DecodeChunk(const BlockCodec& codec, const Chunk& chunk, const Pieces& payload,
                 float* values) {
  EncodedReader reader(codec, payload);
  for (const Span& span : chunk.spans) {
    for (uint64_t begin = 0; begin < span.elements; begin += kCodecBlock) {
      reader.Decode(std::min<uint64_t>(span.elements - begin, kCodecBlock),
                    values + span.chunk_offset + begin);
    }
  }
}

}  // namespace syncgrads
