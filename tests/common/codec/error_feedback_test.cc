#include "common/codec/error_feedback.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/block_arithmetic.h"
#include "gtest/gtest.h"
#include "tests/common/kernels/every_target.h"

namespace syncgrads {
namespace {

constexpr uint64_t kSeed = 20241113;
const Encoding kEncodings[] = {{Codec::kF16},
                               {Codec::kBF16},
                               {Codec::kInt8},
                               {Codec::kTopK, kDefaultTopKFraction},
                               {Codec::kOneBit}};

const std::byte* BytesOf(const std::vector<float>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

std::vector<float> Normal(size_t count, std::mt19937_64& random, float mean = 0) {
  std::normal_distribution<float> normal(mean, 1);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> DecodeSpan(const BlockCodec& codec, const std::vector<std::byte>& encoded,
                              size_t elements) {
  std::vector<float> values(elements);
  const std::byte* from = encoded.data();
  for (size_t begin = 0; begin < elements; begin += kCodecBlock) {
    const size_t count = std::min(elements - begin, kCodecBlock);
    codec.Decode(from, count, values.data() + begin);
    from += codec.EncodedBytes(count);
  }
  return values;
}

// A sender of one span, with its residual (the compression error).
struct Sender {
  Sender(const Encoding& encoding, size_t elements)
      : codec(MakeCodec(encoding)),
        residual(elements),
        encoded(EncodedSpanBytes(*codec, elements)) {}

  std::vector<float> Send(const std::vector<float>& values) {
    norms = {};
    EXPECT_TRUE(EncodeSpanWithFeedback(*codec, BytesOf(values), residual.data(), values.size(),
                                       encoded.data(), residual.data(), norms));
    return DecodeSpan(*codec, encoded, values.size());
  }

  std::unique_ptr<const BlockCodec> codec;
  std::vector<float> residual;
  std::vector<std::byte> encoded;
  FeedbackNorms norms;
};

TEST(ErrorFeedbackTest, WhatIsNotSentIsLeft) {
  for (const Encoding& encoding : kEncodings) {
    std::mt19937_64 random(kSeed);
    Sender sender(encoding, 5000);
    for (int round = 0; round < 5; ++round) {
      const std::vector<float> values = Normal(5000, random);
      const std::vector<float> before = sender.residual;
      const std::vector<float> sent = sender.Send(values);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(sender.residual[i], values[i] + before[i] - sent[i]) << ToString(encoding);
      }
    }
  }
}

// Over many rounds all values arrive: the sum of what was sent differs from the sum of the values
// only by the residual.
TEST(ErrorFeedbackTest, TheSumOfWhatIsSentFollowsTheSumOfTheValues) {
  constexpr int kRounds = 400;
  constexpr size_t kElements = 3000;
  for (const Encoding& encoding : kEncodings) {
    std::mt19937_64 random(kSeed);
    Sender sender(encoding, kElements);
    std::vector<double> difference(kElements), sum(kElements);
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<float> values = Normal(kElements, random, 1);
      const std::vector<float> sent = sender.Send(values);
      for (size_t i = 0; i < kElements; ++i) {
        sum[i] += values[i];
        difference[i] += static_cast<double>(values[i]) - sent[i];
      }
    }
    double norm = 0, lost = 0;
    for (size_t i = 0; i < kElements; ++i) {
      EXPECT_NEAR(difference[i], sender.residual[i], 1e-2) << ToString(encoding);
      norm += sum[i] * sum[i];
      lost += difference[i] * difference[i];
    }
    // With top-k an element waits for about a hundred rounds, which is a large part of this test's
    // rounds.
    EXPECT_LT(std::sqrt(lost / norm), encoding.codec == Codec::kTopK ? 0.3 : 0.02)
        << ToString(encoding);
  }
}

TEST(ErrorFeedbackTest, WhatIsNotFiniteCannotBeEncoded) {
  for (const float odd : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const size_t at : {0, 17, 2047, 2048, 2999}) {
      std::vector<float> values(3000, 1), residual(3000);
      values[at] = odd;
      const auto codec = MakeCodec({Codec::kInt8});
      std::vector<std::byte> encoded(EncodedSpanBytes(*codec, values.size()));
      std::vector<float> left(values.size());
      FeedbackNorms norms;
      EXPECT_FALSE(EncodeSpanWithFeedback(*codec, BytesOf(values), residual.data(), values.size(),
                                          encoded.data(), left.data(), norms))
          << odd << " at " << at;
      EXPECT_FALSE(EncodeSpanWithFeedback(*codec, BytesOf(values), nullptr, values.size(),
                                          encoded.data(), left.data(), norms));
    }
  }
}

TEST(BlockArithmeticTest, NormsHaveTheBitsOfThePlainLoopOnEveryTarget) {
  OnEveryTarget([] {
    std::mt19937_64 random(kSeed);
    for (const size_t count : {0, 1, 15, 16, 17, 1000, 2048}) {
      const std::vector<float> values = Normal(count, random);
      double sums[16] = {};
      for (size_t i = 0; i < count; ++i) {
        sums[i % 16] += static_cast<double>(values[i]) * values[i];
      }
      for (size_t half = 8; half > 0; half /= 2) {
        for (size_t i = 0; i < half; ++i) sums[i] += sums[half + i];
      }
      EXPECT_EQ(SumOfSquares(BytesOf(values), count), sums[0]) << count;
    }
  });
}

// Returns the number of rounds until the guard replaces the codec; 0 if it does not.
int RoundsUntilReplaced(const Encoding& encoding, int rounds, float growth,
                        const std::vector<float>& values) {
  Sender sender(encoding, values.size());
  ResidualGuard guard(encoding.codec);
  std::vector<float> scaled = values;
  for (int round = 1; round <= rounds; ++round) {
    sender.Send(scaled);
    if (guard.Observe(sender.norms, encoding)) return round;
    for (float& value : scaled) value *= growth;
  }
  return 0;
}

TEST(ResidualGuardTest, IsContentWithGradientsOfEverySort) {
  std::mt19937_64 random(kSeed);
  const std::vector<float> noise = Normal(4096, random), steady = Normal(4096, random, 3);
  for (const Encoding& encoding : kEncodings) {
    SCOPED_TRACE(ToString(encoding));
    EXPECT_EQ(RoundsUntilReplaced(encoding, 600, 1, noise), 0);
    EXPECT_EQ(RoundsUntilReplaced(encoding, 600, 1, steady), 0);
    // Gradients become smaller in the course of training.
    EXPECT_EQ(RoundsUntilReplaced(encoding, 600, 0.98f, noise), 0);
    EXPECT_EQ(RoundsUntilReplaced(encoding, 50, 0.5f, noise), 0);
  }
}

TEST(ResidualGuardTest, ReplacesACodecThatCannotFollow) {
  // The values are beyond the range of f16.
  EXPECT_EQ(RoundsUntilReplaced({Codec::kF16}, 100, 1, std::vector<float>(4096, 1e6f)),
            ResidualGuard::kRounds);
  // Only one element is not zero. The mean magnitude, which one-bit sends, is far below it for
  // hundreds of rounds.
  std::vector<float> uneven(2048, 0);
  uneven[5] = 1;
  EXPECT_GT(RoundsUntilReplaced({Codec::kOneBit}, 400, 1, uneven), ResidualGuard::kRounds);
}

TEST(ResidualGuardTest, GoesFromOneCodecToTheNextMilderOne) {
  const Encoding planned{Codec::kTopK, 0.01};
  ResidualGuard guard(Codec::kTopK);
  std::vector<Codec> used;
  double residual = 1e3;
  for (int round = 0; round < 40; ++round) {
    guard.Observe({.values = 1, .residual = residual * residual}, planned);
    residual *= 1.1;
    if (used.empty() || used.back() != guard.codec()) used.push_back(guard.codec());
  }
  EXPECT_EQ(used, (std::vector<Codec>{Codec::kTopK, Codec::kInt8, Codec::kRaw}));
}

}  // namespace
}  // namespace syncgrads
