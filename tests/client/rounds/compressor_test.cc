#include "client/rounds/compressor.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/wire/encoded_chunk.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::client {
namespace {

constexpr ChunkId kChunk{0};
using Values = std::vector<float>;

// Makes a plan with two tensors, of 3000 and 100 elements, in one chunk.
GroupPlan PlanFor(const Compression& compression) {
  GroupSpec spec = {"model",
                    {{"a", DType::kF32, {3000}}, {"b", DType::kF32, {100}}},
                    Reduction::kAverage,
                    kMaxChunkBytes};
  spec.compression = {compression, compression};
  Layout layout = *LayoutOf(spec);
  std::vector<ServerIndex> servers(layout.chunks().size());
  return {GroupId{1}, std::move(spec), std::move(layout), std::move(servers)};
}

absl::Span<const std::byte> BytesOf(const float* values, size_t count) {
  return {reinterpret_cast<const std::byte*>(values), count * sizeof(float)};
}

class CompressorTest : public testing::Test {
 protected:
  explicit CompressorTest(Compression compression = {{Codec::kInt8}, {Codec::kOneBit}})
      : plan_(PlanFor(compression)) {}

  // Encodes a contribution with all of `values` and returns what its payload decodes to. Returns an
  // empty vector if the values are to be sent raw and unchanged.
  Values Send(const Values& values) {
    const auto encoded = compressor_.Encode(
        kChunk, {}, {BytesOf(values.data(), 3000), BytesOf(values.data() + 3000, 100)});
    if (!encoded.has_value()) return {};
    notice_ = encoded->notice;
    codec_ = encoded->codec;
    Values decoded(3100);
    if (encoded->codec == Codec::kRaw) {
      EXPECT_EQ(encoded->size, decoded.size() * sizeof(float));
      std::memcpy(decoded.data(), encoded->bytes.get(), encoded->size);
    } else {
      const auto codec = MakeCodec({encoded->codec});
      const Chunk& chunk = plan_.layout.chunk(kChunk);
      EXPECT_EQ(encoded->size, EncodedChunkBytes(*codec, chunk));
      DecodeChunk(*codec, chunk, {{encoded->bytes.get(), encoded->size}}, decoded.data());
    }
    return decoded;
  }

  const GroupPlan plan_;
  Compressor compressor_{plan_};
  std::string notice_;
  Codec codec_{};
};

// The values are 0.3 and 100. Int8 rounds 0.3 to 0, and the next contribution shows whether the
// residual has been added.
Values Uneven() {
  Values values(3100, 0.3f);
  for (size_t i = 0; i < values.size(); i += 50) values[i] = 100;
  return values;
}

TEST_F(CompressorTest, AddsWhatWasLostOnceItHasBeenAnswered) {
  const Values first = Send(Uneven());
  ASSERT_EQ(first[1], 0);
  compressor_.Commit(kChunk);
  EXPECT_NEAR(Send(Uneven())[1], 100.0 / 127, 1e-6);  // 0.3 and the residual 0.3, rounded
}

TEST_F(CompressorTest, WhatWasGivenUpWasNeverMade) {
  const Values first = Send(Uneven());
  EXPECT_EQ(Send(Uneven()), first);
  compressor_.Discard(kChunk);
  compressor_.Commit(kChunk);  // commits a skip
  EXPECT_EQ(Send(Uneven()), first);
}

TEST_F(CompressorTest, AnAbsentSpanKeepsItsResidual) {
  const Values values = Uneven();
  Send(values);
  compressor_.Commit(kChunk);
  const auto part = compressor_.Encode(kChunk, {1}, {BytesOf(values.data(), 3000)});
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->size,
            EncodedChunkBytes(*MakeCodec({Codec::kInt8}), plan_.layout.chunk(kChunk), {1}));
  compressor_.Commit(kChunk);
  const Values sent = Send(values);
  EXPECT_EQ(sent[1], 0);                       // 0.3 and the residual 0.6 - 100 / 127, rounded
  EXPECT_NEAR(sent[3001], 100.0 / 127, 1e-6);  // 0.3 and the residual 0.3, rounded
}

TEST_F(CompressorTest, SendsAllThatWasLostInAStepThatGoesWhole) {
  const Values values = Uneven();
  const std::vector<absl::Span<const std::byte>> spans = {BytesOf(values.data(), 3000),
                                                          BytesOf(values.data() + 3000, 100)};
  Send(values);
  compressor_.Commit(kChunk);
  const auto whole = compressor_.Encode(kChunk, {}, spans, /*whole=*/true);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->codec, Codec::kRaw);
  float second;
  std::memcpy(&second, whole->bytes.get() + sizeof(float), sizeof(second));
  EXPECT_FLOAT_EQ(second, 0.6f);
  // A contribution that is abandoned can be encoded again.
  compressor_.Discard(kChunk);
  ASSERT_TRUE(compressor_.Encode(kChunk, {}, spans, /*whole=*/true).has_value());
  compressor_.Commit(kChunk);
  // No residual remains: the compressor behaves as a new one does.
  Compressor anew(plan_);
  for (int step = 0; step < 3; ++step) {
    const auto a = compressor_.Encode(kChunk, {}, spans), b = anew.Encode(kChunk, {}, spans);
    ASSERT_TRUE(a.has_value() && b.has_value());
    EXPECT_EQ(std::memcmp(a->bytes.get(), b->bytes.get(), b->size), 0);
    compressor_.Commit(kChunk);
    anew.Commit(kChunk);
  }
}

TEST_F(CompressorTest, ANumberThatIsNotFiniteLeavesWhatWasLostWhereItIs) {
  Send(Uneven());
  compressor_.Commit(kChunk);
  Values odd = Uneven();
  odd[3050] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(compressor_
                   .Encode(kChunk, {}, {BytesOf(odd.data(), 3000), BytesOf(odd.data() + 3000, 100)},
                           /*whole=*/true)
                   .has_value());
  compressor_.Commit(kChunk);
  EXPECT_NEAR(Send(Uneven())[1], 100.0 / 127, 1e-6);
}

TEST_F(CompressorTest, WhatIsNotFiniteGoesAsItIsAndChangesNothing) {
  Send(Uneven());
  compressor_.Commit(kChunk);
  Values odd = Uneven();
  odd[3050] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Send(odd), Values());
  compressor_.Commit(kChunk);
  EXPECT_NEAR(Send(Uneven())[1], 100.0 / 127, 1e-6);
}

TEST_F(CompressorTest, RefusesResultsThatCannotBeDecoded) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Chunk& chunk = plan_.layout.chunk(kChunk);
  std::string payload(EncodedChunkBytes(*MakeCodec({Codec::kOneBit}), chunk), '\0');
  const auto check = [&](Codec codec) {
    return compressor_.CheckResult(
        kChunk, codec, {{reinterpret_cast<const std::byte*>(payload.data()), payload.size()}});
  };
  EXPECT_THAT(check(Codec::kOneBit), IsOk());
  EXPECT_EQ(compressor_.ResultBytes(kChunk, Codec::kOneBit), payload.size());
  EXPECT_EQ(compressor_.ResultBytes(kChunk, Codec::kRaw), chunk.bytes());
  payload.replace(0, 4, "\xff\xff\xff\x7f");
  ExpectError(check(Codec::kOneBit), kInvalid, {"\"a\"", "scale of one-bit"});
  payload.pop_back();
  ExpectError(check(Codec::kOneBit), kInvalid, {"bytes"});
  ExpectError(check(Codec::kTopK), kInvalid, {"top-k", "one-bit is expected"});
}

TEST_F(CompressorTest, SaysWhenResultsComeInAnotherCodec) {
  EXPECT_EQ(compressor_.Received(kChunk, Codec::kOneBit), "");
  EXPECT_EQ(
      compressor_.Received(kChunk, Codec::kInt8),
      "results of group \"model\", chunk 0 (from tensor \"a\" to \"b\") are now sent as int8, "
      "previously as one-bit");
  EXPECT_EQ(compressor_.Received(kChunk, Codec::kInt8), "");
}

class GuardedCompressorTest : public CompressorTest {
 protected:
  GuardedCompressorTest() : CompressorTest({{Codec::kF16}, {}}) {}
};

TEST_F(GuardedCompressorTest, SendsAllThatWasLostWhenTheCodecIsGivenUp) {
  const Values large(3100, 1e6f);  // larger than the largest f16 number
  double sent = 0;
  int round = 0;
  do {
    sent += Send(large)[77];
    EXPECT_EQ(codec_, Codec::kF16);
    compressor_.Commit(kChunk);
    ++round;
  } while (notice_.empty() && round < 100);
  EXPECT_EQ(round, ResidualGuard::kRounds);
  EXPECT_EQ(notice_,
            "contributions to group \"model\", chunk 0 (from tensor \"a\" to \"b\") are sent as "
            "raw from now on: f16 loses too much precision");
  sent += Send(large)[77];
  EXPECT_EQ(codec_, Codec::kRaw);
  EXPECT_EQ(sent, 1e6 * (round + 1));
  compressor_.Commit(kChunk);
  // The residual has been sent, so the next contribution is unchanged.
  EXPECT_EQ(Send(large), Values());
}

}  // namespace
}  // namespace syncgrads::client
