// The fuzz target over payloads of numbers that are drawn at random, and then damaged.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"
#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace syncgrads {
namespace {

constexpr uint64_t kSeed = 20241115;
constexpr int kPayloads = 4000;
// As the target numbers them.
constexpr Encoding kEncodings[] = {{Codec::kF16},        {Codec::kBF16},      {Codec::kInt8},
                                   {Codec::kTopK, 0.01}, {Codec::kTopK, 0.5}, {Codec::kOneBit}};

std::string Span(const BlockCodec& codec, size_t elements, std::mt19937_64& random) {
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

std::string Input(std::mt19937_64& random) {
  std::string header;
  for (int i = 0; i < 5; ++i) header += static_cast<char>(random());
  const auto byte = [&](int i) { return static_cast<size_t>(static_cast<uint8_t>(header[i])); };
  const auto codec = MakeCodec(kEncodings[byte(0) % std::size(kEncodings)]);
  return header + Span(*codec, 1 + (byte(2) | byte(3) << 8) % 5000, random) +
         Span(*codec, 1 + byte(4), random);
}

void Feed(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

TEST(CodecFuzzTest, GoodPayloadsDecode) {
  std::mt19937_64 random(kSeed);
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (int i = 0; i < kPayloads; ++i) Feed(Input(random));
}

TEST(CodecFuzzTest, DamagedPayloadsCrashNothingAndAreRefusedOrFinite) {
  std::mt19937_64 random(kSeed + 1);
  SCOPED_TRACE(absl::StrCat("seed ", kSeed + 1));
  for (int i = 0; i < kPayloads; ++i) {
    std::string input = Input(random);
    for (uint64_t times = 1 + random() % 4; times > 0; --times) {
      const size_t at = 5 + random() % (input.size() - 5);
      switch (random() % 8) {
        case 0:
          input.resize(at + 1);
          break;
        case 1:
          input.insert(at, 1, static_cast<char>(random()));
          break;
        default:
          input[at] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
      }
    }
    Feed(input);
  }
}

}  // namespace
}  // namespace syncgrads
