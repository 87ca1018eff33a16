// Rounds with encoded payloads: contributions, results, and the residuals that survive a crash.

#include "server/core/closing/encoded_closing.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/error_feedback.h"
#include "common/codec/reference.h"
#include "common/kernels/reference.h"
#include "common/optim/update.h"
#include "common/wire/encoded_chunk.h"
#include "gtest/gtest.h"
#include "server/core/rounds/chunk_rounds.h"
#include "server/state/state_file.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

constexpr uint64_t kSeed = 20241114;
constexpr size_t kSizes[] = {700, 2048, 2900};  // elements of the three tensors
constexpr size_t kElements = 700 + 2048 + 2900;
const Encoding kEncodings[] = {{Codec::kF16},
                               {Codec::kBF16},
                               {Codec::kInt8},
                               {Codec::kTopK, kDefaultTopKFraction},
                               {Codec::kOneBit}};

using Values = std::vector<float>;

GroupPlan PlanFor(const Compression& compression, UpdateRule rule = Reduction::kAverage) {
  GroupSpec spec = {"model", {}, std::move(rule), kMaxChunkBytes};
  for (const size_t size : kSizes) {
    spec.tensors.push_back({absl::StrCat("t", size), DType::kF32, {static_cast<int64_t>(size)}});
    spec.compression.push_back(compression);
  }
  return PlanOf(spec);
}

const Chunk& OnlyChunk(const GroupPlan& plan) {
  EXPECT_EQ(plan.layout.chunks().size(), 1u);
  return plan.layout.chunks()[0];
}

Values RandomValues(std::mt19937_64& random) {
  std::normal_distribution<float> normal(0.1f, 1);
  Values values(kElements);
  for (float& value : values) value = normal(random);
  return values;
}

// Encodes `values` with plain loops, without the spans `absent`.
std::string Encoded(const Encoding& encoding, const Values& values,
                    const std::vector<uint32_t>& absent = {}) {
  std::string bytes;
  size_t begin = 0;
  for (uint32_t s = 0; s < 3; begin += kSizes[s++]) {
    if (std::count(absent.begin(), absent.end(), s) > 0) continue;
    for (size_t i = 0; i < kSizes[s]; i += kCodecBlock) {
      const size_t count = std::min(kSizes[s] - i, kCodecBlock);
      const auto from = values.begin() + static_cast<ptrdiff_t>(begin + i);
      bytes += reference::Encode(encoding, {from, from + static_cast<ptrdiff_t>(count)});
    }
  }
  return bytes;
}

Values Decoded(const Encoding& encoding, const std::string& bytes) {
  Values values;
  const auto codec = MakeCodec(encoding);
  size_t at = 0;
  for (const size_t size : kSizes) {
    for (size_t i = 0; i < size; i += kCodecBlock) {
      const size_t count = std::min(size - i, kCodecBlock);
      const size_t length = codec == nullptr ? count * 4 : codec->EncodedBytes(count);
      for (const float value : reference::Decode(encoding, bytes.substr(at, length), count)) {
        values.push_back(value);
      }
      at += length;
    }
  }
  return values;
}

Values Averaged(const std::vector<Values>& all, const std::vector<double>& weights) {
  std::vector<WeightedSource> sources;
  for (size_t i = 0; i < all.size(); ++i) {
    sources.push_back({reinterpret_cast<const std::byte*>(all[i].data()), weights[i]});
  }
  Values average(kElements);
  reference::Reduce(DType::kF32, Reduction::kAverage, sources, kElements,
                    reinterpret_cast<std::byte*>(average.data()));
  return average;
}

Contribution Of(Codec codec, const std::string& bytes, double weight = 1,
                std::vector<uint32_t> absent = {}) {
  return {false, weight, std::move(absent), PayloadOf(bytes, {bytes.size() / 3, bytes.size() / 2}),
          codec};
}

std::vector<Seated> SeatedOf(const std::vector<Contribution>& contributions) {
  std::vector<Seated> seated;
  for (uint32_t rank = 0; rank < contributions.size(); ++rank) {
    seated.push_back({rank, &contributions[rank]});
  }
  return seated;
}

std::unique_ptr<Slot> SlotFor(const GroupPlan& plan) {
  auto slot = std::make_unique<Slot>();
  const Chunk& chunk = OnlyChunk(plan);
  slot->values = AlignedBuffer(ResultBytes(chunk, plan.spec.rule, 1));
  slot->residual = AlignedBuffer(chunk.bytes());
  std::memset(slot->residual.data(), 0x5a, chunk.bytes());
  return slot;
}

std::string TextOf(const AlignedBuffer& buffer, size_t bytes) {
  return std::string(reinterpret_cast<const char*>(buffer.data()), bytes);
}

TEST(EncodedContributionsTest, AreDecodedAndAddedInRankOrder) {
  for (const Encoding& encoding : kEncodings) {
    SCOPED_TRACE(absl::StrCat(ToString(encoding), ", seed ", kSeed));
    std::mt19937_64 random(kSeed);
    const GroupPlan plan = PlanFor({encoding, {}});
    const Values a = RandomValues(random), b = RandomValues(random), c = RandomValues(random);
    // The second contribution is not encoded: a worker sends raw values if one of them is not
    // finite.
    const std::vector<Contribution> contributions = {Of(encoding.codec, Encoded(encoding, a), 2),
                                                     Of(Codec::kRaw, BytesOf(b), 3),
                                                     Of(encoding.codec, Encoded(encoding, c), 0.5)};
    const auto slot = SlotFor(plan);
    const Closed closed =
        CloseReduction(OnlyChunk(plan), plan.spec.rule, SeatedOf(contributions), *slot);
    EXPECT_EQ(closed.counts, (std::vector<uint32_t>{3, 3, 3}));
    ASSERT_EQ(closed.value_bytes, kElements * sizeof(float));
    const Values want = Averaged(
        {Decoded(encoding, Encoded(encoding, a)), b, Decoded(encoding, Encoded(encoding, c))},
        {2, 3, 0.5});
    EXPECT_TRUE(TextOf(slot->values, closed.value_bytes) == BytesOf(want));
  }
}

TEST(EncodedContributionsTest, SpansThatAreAbsentAreNotInThePayload) {
  const Encoding int8{Codec::kInt8};
  std::mt19937_64 random(kSeed);
  const GroupPlan plan = PlanFor({int8, {}});
  const Values a = RandomValues(random), b = RandomValues(random);
  const std::vector<Contribution> contributions = {Of(Codec::kInt8, Encoded(int8, a, {1}), 1, {1}),
                                                   Of(Codec::kInt8, Encoded(int8, b, {0}), 1, {0})};
  const auto slot = SlotFor(plan);
  const Closed closed =
      CloseReduction(OnlyChunk(plan), plan.spec.rule, SeatedOf(contributions), *slot);
  EXPECT_EQ(closed.counts, (std::vector<uint32_t>{1, 1, 2}));
  const Values only_a = Decoded(int8, Encoded(int8, a)), only_b = Decoded(int8, Encoded(int8, b));
  Values want = Averaged({only_a, only_b}, {1, 1});
  std::copy_n(only_a.begin(), 700, want.begin());
  std::copy_n(only_b.begin() + 700, 2048, want.begin() + 700);
  EXPECT_TRUE(TextOf(slot->values, closed.value_bytes) == BytesOf(want));
}

TEST(EncodedContributionsTest, AreGradientsForAnOptimizer) {
  const Encoding top_k{Codec::kTopK, 0.1};
  std::mt19937_64 random(kSeed);
  const GroupPlan plan = PlanFor({top_k, {}}, Optimizer(Sgd{.learning_rate = 0.5}));
  const Values parameters = RandomValues(random), a = RandomValues(random),
               b = RandomValues(random);
  const auto previous = SlotFor(plan), next = SlotFor(plan);
  std::memcpy(previous->values.data(), parameters.data(), kElements * sizeof(float));
  previous->updates.assign(3, 4);
  next->updates.assign(3, 0);
  const std::vector<Contribution> contributions = {Of(Codec::kTopK, Encoded(top_k, a)),
                                                   Of(Codec::kTopK, Encoded(top_k, b))};
  CloseUpdate(OnlyChunk(plan), Optimizer(Sgd{.learning_rate = 0.5}), SeatedOf(contributions),
              *previous, *next);
  const Values gradient =
      Averaged({Decoded(top_k, Encoded(top_k, a)), Decoded(top_k, Encoded(top_k, b))}, {1, 1});
  Values want(kElements);
  ApplyUpdate(Sgd{.learning_rate = 0.5}, DType::kF32, 5,
              reinterpret_cast<const std::byte*>(gradient.data()), kElements,
              reinterpret_cast<const std::byte*>(parameters.data()),
              reinterpret_cast<std::byte*>(want.data()), {}, {});
  EXPECT_TRUE(TextOf(next->values, kElements * sizeof(float)) == BytesOf(want));
}

// Each round has two contributions and is compared to plain loops.
TEST(EncodedResultsTest, CarryWhatTheOnesBeforeHaveLost) {
  for (const Encoding& encoding : kEncodings) {
    SCOPED_TRACE(absl::StrCat(ToString(encoding), ", seed ", kSeed));
    std::mt19937_64 random(kSeed);
    const GroupPlan plan = PlanFor({{}, encoding});
    Values residual(kElements);
    std::unique_ptr<Slot> previous;
    for (int round = 1; round <= 6; ++round) {
      const Values a = RandomValues(random), b = RandomValues(random);
      const std::vector<Contribution> contributions = {Of(Codec::kRaw, BytesOf(a)),
                                                       Of(Codec::kRaw, BytesOf(b))};
      auto slot = SlotFor(plan);
      const Closed closed = CloseEncodedReduction(OnlyChunk(plan), Reduction::kAverage,
                                                  SeatedOf(contributions), previous.get(), *slot);
      Values sum = Averaged({a, b}, {1, 1});
      for (size_t i = 0; i < kElements; ++i) sum[i] += residual[i];
      const std::string want = Encoded(encoding, sum);
      ASSERT_EQ(closed.codec, encoding.codec);
      ASSERT_EQ(closed.value_bytes, want.size());
      ASSERT_TRUE(TextOf(slot->values, closed.value_bytes) == want) << "round " << round;
      const Values sent = Decoded(encoding, want);
      for (size_t i = 0; i < kElements; ++i) residual[i] = sum[i] - sent[i];
      ASSERT_TRUE(TextOf(slot->residual, kElements * sizeof(float)) == BytesOf(residual));
      previous = std::move(slot);
    }
  }
}

TEST(EncodedResultsTest, AreAsTheyAreWithAllThatWasLostWhereAllContributionsCameSo) {
  const Encoding one_bit{Codec::kOneBit};
  std::mt19937_64 random(kSeed);
  const GroupPlan plan = PlanFor({one_bit, one_bit});
  const auto first = SlotFor(plan), mixed = SlotFor(plan), second = SlotFor(plan);
  const Values a = RandomValues(random), b = RandomValues(random);
  const Contribution encoded = Of(Codec::kOneBit, Encoded(one_bit, a));
  const std::vector<Contribution> lossy = {encoded, encoded};
  CloseEncodedReduction(OnlyChunk(plan), Reduction::kAverage, SeatedOf(lossy), nullptr, *first);
  Values residual(kElements);
  std::memcpy(residual.data(), first->residual.span().data(), kElements * sizeof(float));

  const std::vector<Contribution> half = {Of(Codec::kRaw, BytesOf(a)), encoded};
  EXPECT_EQ(CloseEncodedReduction(OnlyChunk(plan), Reduction::kAverage, SeatedOf(half), first.get(),
                                  *mixed)
                .codec,
            Codec::kOneBit);

  const std::vector<Contribution> whole = {Of(Codec::kRaw, BytesOf(a)), Contribution(),
                                           Of(Codec::kRaw, BytesOf(b))};
  const Closed closed = CloseEncodedReduction(OnlyChunk(plan), Reduction::kAverage, SeatedOf(whole),
                                              first.get(), *second);
  EXPECT_EQ(closed.codec, Codec::kRaw);
  Values want = Averaged({a, b}, {1, 1});
  for (size_t i = 0; i < kElements; ++i) want[i] += residual[i];
  EXPECT_TRUE(TextOf(second->values, closed.value_bytes) == BytesOf(want));
  EXPECT_TRUE(TextOf(second->residual, kElements * sizeof(float)) == BytesOf(Values(kElements)));
  EXPECT_EQ(second->guard, ResidualGuard(Codec::kOneBit));
}

TEST(EncodedResultsTest, ASpanThatNobodyContributesToKeepsItsResidual) {
  const Encoding one_bit{Codec::kOneBit};
  std::mt19937_64 random(kSeed);
  const GroupPlan plan = PlanFor({{}, one_bit});
  const auto first = SlotFor(plan), second = SlotFor(plan), third = SlotFor(plan);
  const Values a = RandomValues(random);
  const std::vector<Contribution> whole = {Of(Codec::kRaw, BytesOf(a))};
  CloseEncodedReduction(OnlyChunk(plan), Reduction::kSum, SeatedOf(whole), nullptr, *first);
  const std::vector<Contribution> part = {
      Of(Codec::kRaw, BytesOf(Values(a.begin(), a.begin() + 700)), 1, {1, 2})};
  const Closed closed =
      CloseEncodedReduction(OnlyChunk(plan), Reduction::kSum, SeatedOf(part), first.get(), *second);
  EXPECT_EQ(closed.counts, (std::vector<uint32_t>{1, 0, 0}));
  const size_t kept = 700 * sizeof(float), all = kElements * sizeof(float);
  EXPECT_EQ(TextOf(second->residual, all).substr(kept), TextOf(first->residual, all).substr(kept));
  EXPECT_NE(TextOf(second->residual, kept), TextOf(first->residual, kept));
  EXPECT_THAT(CheckEncodedChunk(*MakeCodec(one_bit), plan.layout, OnlyChunk(plan),
                                {second->values.span().first(closed.value_bytes)}),
              IsOk());

  const Closed nothing =
      CloseEncodedReduction(OnlyChunk(plan), Reduction::kSum, {}, second.get(), *third);
  EXPECT_EQ(nothing.value_bytes, 0u);
  EXPECT_EQ(TextOf(third->residual, all), TextOf(second->residual, all));
}

TEST(EncodedResultsTest, WhatIsNotFiniteGoesOutAsItIs) {
  std::mt19937_64 random(kSeed);
  const GroupPlan plan = PlanFor({{}, {Codec::kInt8}});
  const auto first = SlotFor(plan), second = SlotFor(plan);
  Values values = RandomValues(random);
  std::vector<Contribution> contributions = {Of(Codec::kRaw, BytesOf(values))};
  CloseEncodedReduction(OnlyChunk(plan), Reduction::kSum, SeatedOf(contributions), nullptr, *first);
  values[3000] = std::numeric_limits<float>::infinity();
  contributions = {Of(Codec::kRaw, BytesOf(values))};
  const Closed closed = CloseEncodedReduction(OnlyChunk(plan), Reduction::kSum,
                                              SeatedOf(contributions), first.get(), *second);
  EXPECT_EQ(closed.codec, Codec::kRaw);
  EXPECT_TRUE(TextOf(second->values, closed.value_bytes) == BytesOf(values));
  EXPECT_EQ(TextOf(second->residual, kElements * 4), TextOf(first->residual, kElements * 4));
  EXPECT_EQ(second->guard, first->guard);
}

// These values exceed the f16 range, so the residual grows with every round.
TEST(EncodedResultsTest, AreAsTheyAreOnceTheCodecHasLostTooMuch) {
  const GroupPlan plan = PlanFor({{}, {Codec::kF16}});
  const std::vector<Contribution> contributions = {
      Of(Codec::kRaw, BytesOf(Values(kElements, 1e6f)))};
  std::unique_ptr<Slot> previous;
  double received = 0;
  for (int round = 1; round <= ResidualGuard::kRounds + 3; ++round) {
    auto slot = SlotFor(plan);
    const Closed closed = CloseEncodedReduction(OnlyChunk(plan), Reduction::kSum,
                                                SeatedOf(contributions), previous.get(), *slot);
    EXPECT_EQ(closed.codec, round <= ResidualGuard::kRounds ? Codec::kF16 : Codec::kRaw) << round;
    received += Decoded({closed.codec}, TextOf(slot->values, closed.value_bytes))[4000];
    previous = std::move(slot);
  }
  // The raw results have also delivered the residual.
  EXPECT_EQ(received, 1e6 * (ResidualGuard::kRounds + 3));
}

// For short spans the encoded form is longer than the raw form.
TEST(EncodedResultsTest, HaveRoomForSpansOfOneElement) {
  for (const Encoding& encoding : kEncodings) {
    GroupSpec spec = {"model", {}, Reduction::kSum, kMaxChunkBytes};
    for (int t = 0; t < 50; ++t) {
      spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {}});
      spec.compression.push_back({{}, encoding});
    }
    const GroupPlan plan = PlanOf(spec);
    const auto slot = SlotFor(plan);
    const std::vector<Contribution> contributions = {Of(Codec::kRaw, BytesOf(Values(50, 2)))};
    const Closed closed = CloseEncodedReduction(OnlyChunk(plan), Reduction::kSum,
                                                SeatedOf(contributions), nullptr, *slot);
    EXPECT_LE(closed.value_bytes, slot->values.size());
    EXPECT_EQ(closed.value_bytes, EncodedChunkBytes(*MakeCodec(encoding), OnlyChunk(plan)));
  }
}

// The server is restarted after every round. Its results must equal those of a server that is never
// restarted.
TEST(EncodedResultsTest, GoOnBitIdenticallyAfterACrash) {
  const GroupPlan plan = PlanFor({{Codec::kInt8}, {Codec::kTopK, 0.05}});
  const std::string folder = absl::StrCat(::testing::TempDir(), "/encoded");
  std::filesystem::create_directories(folder);
  StateLayout layout;
  layout.generation = Generation{1};
  layout.contributors = 4;
  layout.chunks = {
      {ChunkId{0}, ResultBytes(OnlyChunk(plan), plan.spec.rule, 2), 3, OnlyChunk(plan).bytes()}};
  const std::string path = folder + "/state";
  ASSERT_THAT(StateFile::Create(path, layout, 1 << 24), IsOk());

  const FakeClock clock;
  auto roster = std::make_shared<Roster>();
  roster->Add(EpochOfSize(2));
  const CurrentRoster current(roster);
  ChunkRounds undisturbed(plan, ChunkId{0}, Generation{1}, current, clock);
  std::mt19937_64 random(kSeed);
  for (uint64_t round = 1; round <= 7; ++round) {
    const absl::StatusOr<std::shared_ptr<StateFile>> file = StateFile::Open(path, layout);
    ASSERT_THAT(file, IsOk());
    ChunkRounds killed(plan, ChunkId{0}, Generation{1}, current, clock, *file);
    ASSERT_EQ(killed.open_round(), Round{round});
    const auto sink = std::make_shared<RecordingSink>(), other = std::make_shared<RecordingSink>();
    for (uint32_t member = 0; member < 2; ++member) {
      PushHeader header = PushOf(member, round);
      header.codec = Codec::kInt8;
      const std::string payload = Encoded({Codec::kInt8}, RandomValues(random));
      undisturbed.Push(header, PayloadOf(payload), sink);
      killed.Push(header, PayloadOf(payload), other);
    }
    ASSERT_EQ(sink->count(), 2u);
    EXPECT_EQ(other->last().header.codec, Codec::kTopK);
    ASSERT_TRUE(other->last().payload == sink->last().payload) << "round " << round;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace syncgrads::server
