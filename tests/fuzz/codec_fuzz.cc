// Reads any bytes as an encoded payload of a chunk, in pieces that are cut as the first
// bytes say. Nothing may crash, and what passes the check decodes to finite numbers.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "common/codec/encoded_chunk.h"

namespace syncgrads {
namespace {

constexpr Encoding kEncodings[] = {{Codec::kF16},        {Codec::kBF16},      {Codec::kInt8},
                                   {Codec::kTopK, 0.01}, {Codec::kTopK, 0.5}, {Codec::kOneBit}};

}  // namespace
}  // namespace syncgrads

// The encoding, how the payload is cut, the elements of a tensor (two bytes) and its
// neighbour (one byte); the rest is the payload.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncgrads;
  constexpr size_t kHeader = 5;
  if (size < kHeader) return 0;
  const Encoding& encoding = kEncodings[data[0] % std::size(kEncodings)];
  const size_t stride = 1 + data[1];
  const int64_t first = 1 + (data[2] | data[3] << 8) % 5000, second = 1 + data[4];
  const auto layout =
      Layout::Create({{"a", DType::kF32, {first}}, {"b", DType::kF32, {second}}}, kMaxChunkBytes);
  const Chunk& chunk = layout->chunks()[0];
  data += kHeader;
  size -= kHeader;

  // Each piece is memory of its own, so that a sanitizer sees one byte too many.
  std::vector<std::unique_ptr<std::byte[]>> memory;
  Pieces pieces;
  for (size_t begin = 0; begin < size; begin += stride) {
    const size_t length = std::min(size - begin, stride);
    memory.push_back(std::make_unique<std::byte[]>(length));
    std::memcpy(memory.back().get(), data + begin, length);
    pieces.push_back({memory.back().get(), length});
  }
  const auto codec = MakeCodec(encoding);
  if (!CheckEncodedChunk(*codec, *layout, chunk, pieces).ok()) return 0;
  const auto values = std::make_unique<float[]>(chunk.elements);
  DecodeChunk(*codec, chunk, pieces, values.get());
  for (size_t i = 0; i < chunk.elements; ++i) {
    if (std::isfinite(values[i])) continue;
    std::fprintf(stderr, "%s: element %zu is %g\n", ToString(encoding).c_str(), i, values[i]);
    std::abort();
  }
  return 0;
}
