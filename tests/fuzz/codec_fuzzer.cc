// Decodes arbitrary bytes as an encoded payload of a chunk, in pieces of any length. A payload that
// passes the check decodes to finite numbers.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"
#include "common/wire/encoded_chunk.h"
#include "tests/fuzz/cut_message.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncgrads::fuzz {
namespace {

constexpr Encoding kEncodings[] = {{Codec::kF16},        {Codec::kBF16},      {Codec::kInt8},
                                   {Codec::kTopK, 0.01}, {Codec::kTopK, 0.5}, {Codec::kOneBit}};

// The first bytes of an input.
struct Setting {
  explicit Setting(Choices& choices)
      : encoding(kEncodings[choices.Byte() % std::size(kEncodings)]),
        stride(1 + choices.Byte()),
        first(1 + static_cast<int64_t>(choices.Number(2)) % 5000),
        second(1 + choices.Byte()) {}

  Encoding encoding;
  size_t stride;
  // The number of elements of the two tensors.
  int64_t first;
  int64_t second;
};
constexpr size_t kSettingBytes = 5;

std::string EncodedSpan(const BlockCodec& codec, size_t elements, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 1);
  std::string bytes;
  for (size_t begin = 0; begin < elements; begin += kCodecBlock) {
    std::vector<float> values(std::min(elements - begin, kCodecBlock));
    for (float& value : values) value = normal(random);
    std::string block(codec.EncodedBytes(values.size()), '\0');
    codec.Encode(values.data(), values.size(), reinterpret_cast<std::byte*>(block.data()));
    bytes += block;
  }
  return bytes;
}

}  // namespace

void Fuzz(absl::string_view input) {
  Choices choices(input);
  const Setting setting(choices);
  const auto layout = Layout::Create(
      {{"a", DType::kF32, {setting.first}}, {"b", DType::kF32, {setting.second}}}, kMaxChunkBytes);
  const Chunk& chunk = layout->chunks()[0];
  const CutMessage cut(choices.Rest(), 0, setting.stride);
  const auto codec = MakeCodec(setting.encoding);
  const absl::Status checked = CheckEncodedChunk(*codec, *layout, chunk, cut.pieces());
  RequireExplained(checked);
  if (!checked.ok()) return;
  const auto values = std::make_unique<float[]>(chunk.elements);
  DecodeChunk(*codec, chunk, cut.pieces(), values.get());
  for (size_t i = 0; i < chunk.elements; ++i) {
    if (std::isfinite(values[i])) continue;
    Require(false, absl::StrCat(ToString(setting.encoding), ": element ", i, " is finite"));
  }
}

std::vector<std::string> Seeds() {
  constexpr int kPayloads = 200;
  std::mt19937_64 random(20241115);
  std::vector<std::string> seeds;
  for (int i = 0; i < kPayloads; ++i) {
    const std::string header = Encoded(random(), kSettingBytes);
    Choices choices(header);
    const Setting setting(choices);
    const auto codec = MakeCodec(setting.encoding);
    seeds.push_back(header + EncodedSpan(*codec, static_cast<size_t>(setting.first), random) +
                    EncodedSpan(*codec, static_cast<size_t>(setting.second), random));
  }
  return seeds;
}

}  // namespace syncgrads::fuzz
