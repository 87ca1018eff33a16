// Tests the contract of BlockCodec with every codec.

#include "common/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/reference.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/common/kernels/every_target.h"

namespace syncgrads {
namespace {

constexpr uint64_t kSeed = 20241112;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr size_t kCounts[] = {1,   2,   7,   8,   9,   15,  16,  17,   63,   64,   65,  100,
                              127, 255, 256, 257, 512, 777, 999, 1024, 1900, 2047, 2048};

class CodecTest : public testing::TestWithParam<Encoding> {
 protected:
  const std::unique_ptr<const BlockCodec> codec_ = MakeCodec(GetParam());

  // Uses memory that is not aligned and has exactly the required length, so that the address
  // sanitizer detects an access past its end.
  std::string Encoded(const std::vector<float>& values) const {
    const size_t bytes = codec_->EncodedBytes(values.size());
    const auto memory = std::make_unique<std::byte[]>(bytes + 1);
    codec_->Encode(values.data(), values.size(), memory.get() + 1);
    return std::string(reinterpret_cast<const char*>(memory.get() + 1), bytes);
  }
  std::vector<float> Decoded(const std::string& bytes, size_t count) const {
    const auto memory = std::make_unique<std::byte[]>(bytes.size() + 1);
    std::memcpy(memory.get() + 1, bytes.data(), bytes.size());
    std::vector<float> values(count, 77);
    codec_->Decode(memory.get() + 1, count, values.data());
    return values;
  }
  absl::Status Check(const std::string& bytes, size_t count) const {
    const auto memory = std::make_unique<std::byte[]>(bytes.size() + 1);
    std::memcpy(memory.get() + 1, bytes.data(), bytes.size());
    return codec_->Check(memory.get() + 1, count);
  }
};

std::string BytesOf(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

double NormOf(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// Returns finite values. The kinds are: like gradients (0), many equal magnitudes (1), all
// magnitudes (2), zeros (3).
std::vector<float> ValuesOf(int kind, size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 0.01f);
  std::vector<float> values(count);
  for (float& value : values) {
    switch (kind) {
      case 0:
        value = normal(random);
        break;
      case 1:
        value = static_cast<float>(static_cast<int>(random() % 7) - 3);
        break;
      case 2: {
        auto bits = static_cast<uint32_t>(random());
        if ((bits & 0x7f800000) == 0x7f800000) bits &= ~0x40000000u;
        std::memcpy(&value, &bits, sizeof(value));
        break;
      }
      default:
        value = 0;
    }
  }
  return values;
}
constexpr int kKinds = 4;

TEST_P(CodecTest, HasTheBytesOfThePlainLoopOnEveryTarget) {
  OnEveryTarget([&] {
    std::mt19937_64 random(kSeed);
    for (const size_t count : kCounts) {
      for (int kind = 0; kind < kKinds; ++kind) {
        SCOPED_TRACE(absl::StrCat(count, " elements of kind ", kind, ", seed ", kSeed));
        const std::vector<float> values = ValuesOf(kind, count, random);
        const std::string want = reference::Encode(GetParam(), values);
        ASSERT_EQ(codec_->EncodedBytes(count), want.size());
        ASSERT_TRUE(Encoded(values) == want);
        ASSERT_TRUE(BytesOf(Decoded(want, count)) ==
                    BytesOf(reference::Decode(GetParam(), want, count)));
        ASSERT_THAT(Check(want, count), IsOk());
      }
    }
  });
}

// Error feedback requires that the encoding error is smaller than the encoded values.
TEST_P(CodecTest, ComesNearerToWhatItEncodes) {
  std::mt19937_64 random(kSeed);
  for (const size_t count : kCounts) {
    const std::vector<float> values = ValuesOf(0, count, random);
    const std::vector<float> decoded = Decoded(Encoded(values), count);
    std::vector<float> lost(count);
    for (size_t i = 0; i < count; ++i) lost[i] = values[i] - decoded[i];
    EXPECT_LT(NormOf(lost), NormOf(values)) << count;
  }
}

TEST_P(CodecTest, TheLargestNumbersStayFinite) {
  const float largest = std::numeric_limits<float>::max();
  for (const size_t count : kCounts) {
    std::vector<float> values(count, largest);
    values[count / 2] = -largest;
    const std::string encoded = Encoded(values);
    EXPECT_THAT(Check(encoded, count), IsOk());
    for (const float value : Decoded(encoded, count)) EXPECT_TRUE(std::isfinite(value)) << count;
  }
}

TEST_P(CodecTest, NumbersTooSmallToDivideByAreLostAndDoNoHarm) {
  const std::vector<float> values(300, std::numeric_limits<float>::denorm_min());
  const std::string encoded = Encoded(values);
  EXPECT_THAT(Check(encoded, 300), IsOk());
  for (const float value : Decoded(encoded, 300)) EXPECT_LE(std::fabs(value), values[0]);
}

// For arbitrary bytes: no memory outside of the block is accessed, and bytes that pass the check
// decode to finite numbers.
TEST_P(CodecTest, AnyBytesAreRefusedOrFinite) {
  std::mt19937_64 random(kSeed);
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (int i = 0; i < 3000; ++i) {
    const size_t count = 1 + random() % 600;
    std::string bytes = Encoded(ValuesOf(0, count, random));
    for (uint64_t damage = random() % 4; damage > 0; --damage) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
    }
    const std::vector<float> decoded = Decoded(bytes, count);
    if (!Check(bytes, count).ok()) continue;
    for (const float value : decoded) ASSERT_TRUE(std::isfinite(value));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodecTest,
                         testing::Values(Encoding{Codec::kF16}, Encoding{Codec::kBF16},
                                         Encoding{Codec::kInt8},
                                         Encoding{Codec::kTopK, kDefaultTopKFraction},
                                         Encoding{Codec::kTopK, 0.3}, Encoding{Codec::kOneBit}),
                         [](const testing::TestParamInfo<Encoding>& info) {
                           std::string name = ToString(info.param);
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

std::string Raw(const std::vector<uint16_t>& positions, const std::vector<float>& values) {
  std::string bytes(reinterpret_cast<const char*>(positions.data()), positions.size() * 2);
  return bytes + BytesOf(values);
}

absl::Status CheckOf(const Encoding& encoding, const std::string& bytes, size_t count) {
  return MakeCodec(encoding)->Check(reinterpret_cast<const std::byte*>(bytes.data()), count);
}

TEST(TopKCheckTest, RefusesWhatNoEncoderMakes) {
  const Encoding third{Codec::kTopK, 0.3};
  EXPECT_THAT(CheckOf(third, Raw({0, 3, 9}, {1, 2, 3}), 10), IsOk());
  ExpectError(CheckOf(third, Raw({0, 3, 10}, {1, 2, 3}), 10), kInvalid,
              {"position 10", "10 elements"});
  ExpectError(CheckOf(third, Raw({0, 3, 3}, {1, 2, 3}), 10), kInvalid, {"position 3", "follows 3"});
  ExpectError(CheckOf(third, Raw({4, 3, 5}, {1, 2, 3}), 10), kInvalid, {"position 3", "follows 4"});
  ExpectError(CheckOf(third, Raw({0, 3, 9}, {1, std::nanf(""), 3}), 10), kInvalid,
              {"nan", "position 3"});
}

TEST(ScaleCheckTest, RefusesScalesThatAreNone) {
  for (const float scale : {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    ExpectError(CheckOf({Codec::kInt8}, BytesOf({scale}) + "abc", 3), kInvalid, {"scale of int8"});
    ExpectError(CheckOf({Codec::kOneBit}, BytesOf({scale}) + "\x05", 3), kInvalid,
                {"scale of one-bit"});
  }
  ExpectError(CheckOf({Codec::kInt8}, BytesOf({1e38f}) + "abc", 3), kInvalid, {"scale of int8"});
  ExpectError(CheckOf({Codec::kOneBit}, BytesOf({1}) + "\x0d", 3), kInvalid,
              {"bits beyond the last 3 elements"});
}

TEST(HalfCheckTest, RefusesWhatIsNotFinite) {
  const std::string infinite("\x00\x3c\x00\x7c", 4);
  ExpectError(CheckOf({Codec::kF16}, infinite, 2), kInvalid, {"f16", "infinite"});
  EXPECT_THAT(CheckOf({Codec::kBF16}, infinite, 2), IsOk());
  ExpectError(CheckOf({Codec::kBF16}, std::string("\x00\x3c\x81\xff", 4), 2), kInvalid, {"bf16"});
}

TEST(CodecSizeTest, SpansAreWholeBlocksAndARest) {
  EXPECT_EQ(EncodedSpanBytes(*MakeCodec({Codec::kInt8}), 2 * 2048 + 300),
            2 * (2048 + 8 * 4) + 300 + 2 * 4);
  EXPECT_EQ(EncodedSpanBytes(*MakeCodec({Codec::kTopK, 0.01}), 2048 + 1), 21 * 6 + 6);
  EXPECT_EQ(EncodedSpanBytes(*MakeCodec({Codec::kOneBit}), 2048 + 9), 8 * (4 + 32) + 4 + 2);
  EXPECT_EQ(EncodedSpanBytes(*MakeCodec({Codec::kBF16}), 5000), 10000);
}

TEST(EncodingTest, ValidatesAndNames) {
  EXPECT_THAT(Validate(Encoding{Codec::kTopK, 0.5}), IsOk());
  for (const double fraction : {0.0, -0.1, 0.51, std::nan("")}) {
    ExpectError(Validate(Encoding{Codec::kTopK, fraction}), kInvalid, {"fraction of top-k"});
  }
  ExpectError(Validate(Encoding{Codec::kInt8, 0.1}), kInvalid, {"0.1", "int8"});
  ExpectError(Validate(Encoding{Codec{9}}), kInvalid, {"codec 9"});
  EXPECT_EQ(ToString(Compression{{Codec::kTopK, 0.01}, {Codec::kInt8}}),
            "push top-k 0.01, result int8");
}

TEST(EncodingTest, APayloadMayBeMilderThanPlanned) {
  const Encoding top_k{Codec::kTopK, 0.01};
  for (const Codec used : {Codec::kTopK, Codec::kInt8, Codec::kRaw}) {
    EXPECT_THAT(CheckUsed(used, top_k), IsOk());
  }
  ExpectError(CheckUsed(Codec::kF16, top_k), kInvalid, {"f16", "top-k 0.01"});
  ExpectError(CheckUsed(Codec::kInt8, Encoding{}), kInvalid, {"int8", "raw"});
  EXPECT_EQ(EncodingOf(Codec::kInt8, top_k), Encoding{Codec::kInt8});
  EXPECT_EQ(EncodingOf(Codec::kTopK, top_k), top_k);
}

}  // namespace
}  // namespace syncgrads
