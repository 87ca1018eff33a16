#include "common/group/layout.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

constexpr uint64_t kSeed = 20240612;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Layout Made(std::vector<TensorSpec> tensors, uint32_t chunk_bytes) {
  absl::StatusOr<Layout> layout = Layout::Create(std::move(tensors), chunk_bytes);
  EXPECT_THAT(layout, IsOk());
  return *std::move(layout);
}

// Returns a text such as "a[0,3)@0 b[0,1)@3": for each span the tensor, the range of its elements,
// and the position in the chunk.
std::string Spans(const Layout& layout, uint32_t chunk) {
  std::string text;
  for (const Span& span : layout.chunk(ChunkId{chunk}).spans) {
    absl::StrAppend(&text, text.empty() ? "" : " ", layout.tensor(span.tensor).name, "[",
                    span.tensor_offset, ",", span.tensor_offset + span.elements, ")@",
                    span.chunk_offset);
  }
  return text;
}

TEST(LayoutTest, GivesEachDTypeARegionInTheOrderOfTheEnum) {
  const Layout layout = Made({{"i", DType::kI32, {2}},
                              {"a", DType::kF32, {3}},
                              {"h", DType::kF16, {5}},
                              {"d", DType::kF64, {1}},
                              {"l", DType::kI64, {1}},
                              {"g", DType::kBF16, {2}},
                              {"b", DType::kF32, {1}}},
                             1024);
  std::vector<DType> dtypes;
  for (const Chunk& chunk : layout.chunks()) {
    dtypes.push_back(chunk.dtype);
    EXPECT_EQ(chunk.first_element, 0u);
  }
  EXPECT_EQ(dtypes, std::vector<DType>(std::begin(kAllDTypes), std::end(kAllDTypes)));
  EXPECT_EQ(Spans(layout, 1), "a[0,3)@0 b[0,1)@3");
  EXPECT_EQ(layout.total_bytes(), 2 * 4 + 3 * 4 + 5 * 2 + 8 + 8 + 2 * 2 + 4u);
}

TEST(LayoutTest, ChunksGrowFromTheFirstSizeInEachSection) {
  const absl::StatusOr<Layout> layout = Layout::Create(
      {{"a", DType::kF32, {3}}, {"b", DType::kF32, {40}}, {"d", DType::kF64, {9}}}, {64, 16});
  ASSERT_THAT(layout, IsOk());
  std::vector<uint64_t> bytes, first;
  for (const Chunk& chunk : layout->chunks()) {
    bytes.push_back(chunk.bytes());
    first.push_back(chunk.first_element);
  }
  EXPECT_EQ(bytes, (std::vector<uint64_t>{16, 32, 24, 16, 32, 64, 60}));
  EXPECT_EQ(first, (std::vector<uint64_t>{0, 2, 6, 0, 4, 12, 28}));
  EXPECT_EQ(Spans(*layout, 3), "a[0,3)@0 b[0,1)@3");
  EXPECT_EQ(layout->ChunksOf(TensorId{1}).first, 3u);
  EXPECT_EQ(layout->ChunksOf(TensorId{1}).count, 4u);
}

TEST(LayoutTest, AFirstSizeAboveTheOthersIsNotUsed) {
  const absl::StatusOr<Layout> layout = Layout::Create({{"a", DType::kF32, {10}}}, {16, 32});
  ASSERT_THAT(layout, IsOk());
  ASSERT_EQ(layout->chunks().size(), 3u);
  EXPECT_EQ(layout->chunks()[0].bytes(), 16u);
}

TEST(LayoutTest, FindsTheSpanOfATensorInAChunk) {
  const Layout layout = Made({{"a", DType::kF32, {3}},
                              {"i", DType::kI32, {1}},
                              {"b", DType::kF32, {7}},
                              {"c", DType::kF32, {2}}},
                             16);
  for (const Chunk& chunk : layout.chunks()) {
    for (uint32_t tensor = 0; tensor < 4; ++tensor) {
      size_t expected = chunk.spans.size();
      for (size_t s = 0; s < chunk.spans.size(); ++s) {
        if (chunk.spans[s].tensor == TensorId{tensor}) expected = s;
      }
      EXPECT_EQ(chunk.SpanOf(TensorId{tensor}), expected);
    }
  }
}

TEST(LayoutTest, LetsSmallTensorsShareAChunkAndSplitsLargeOnes) {
  const Layout layout =
      Made({{"a", DType::kF32, {3}}, {"b", DType::kF32, {7}}, {"c", DType::kF32, {2}}}, 16);
  ASSERT_EQ(layout.chunks().size(), 3u);
  EXPECT_EQ(Spans(layout, 0), "a[0,3)@0 b[0,1)@3");
  EXPECT_EQ(Spans(layout, 1), "b[1,5)@0");
  EXPECT_EQ(Spans(layout, 2), "b[5,7)@0 c[0,2)@2");
  EXPECT_EQ(layout.chunk(ChunkId{2}).first_element, 8u);
  EXPECT_EQ(layout.ChunksOf(TensorId{0}).count, 1u);
  EXPECT_EQ(layout.ChunksOf(TensorId{1}).first, 0u);
  EXPECT_EQ(layout.ChunksOf(TensorId{1}).count, 3u);
  EXPECT_EQ(layout.ChunksOf(TensorId{2}).first, 2u);
}

// Because a payload has only one codec.
TEST(LayoutTest, TensorsOfOneCompressionShareChunksAndNoOthers) {
  const Compression none, int8{{Codec::kInt8}, {Codec::kInt8}}, push{{Codec::kInt8}, {}};
  const absl::StatusOr<Layout> layout = Layout::Create({{"a", DType::kF32, {3}},
                                                        {"b", DType::kF32, {2}},
                                                        {"c", DType::kF32, {4}},
                                                        {"d", DType::kF32, {1}},
                                                        {"e", DType::kF32, {1}},
                                                        {"f", DType::kF64, {1}}},
                                                       16, {{int8, none, int8, none, push, none}});
  ASSERT_THAT(layout, IsOk());
  ASSERT_EQ(layout->chunks().size(), 5u);
  EXPECT_EQ(Spans(*layout, 0), "f[0,1)@0");
  EXPECT_EQ(Spans(*layout, 1), "a[0,3)@0 c[0,1)@3");
  EXPECT_EQ(Spans(*layout, 2), "c[1,4)@0");
  EXPECT_EQ(Spans(*layout, 3), "b[0,2)@0 d[0,1)@2");
  EXPECT_EQ(Spans(*layout, 4), "e[0,1)@0");
  std::vector<uint64_t> first;
  std::vector<Compression> compression;
  for (const Chunk& chunk : layout->chunks()) {
    first.push_back(chunk.first_element);
    compression.push_back(chunk.compression);
  }
  EXPECT_EQ(first, (std::vector<uint64_t>{0, 0, 4, 7, 10}));
  EXPECT_EQ(compression, (std::vector<Compression>{none, int8, int8, none, push}));
  EXPECT_EQ(layout->ChunksOf(TensorId{2}).first, 1u);
  EXPECT_EQ(layout->ChunksOf(TensorId{2}).count, 2u);
  EXPECT_EQ(layout->chunk(ChunkId{1}).SpanOf(TensorId{2}), 1u);
  ExpectError(Layout::Create({{"a", DType::kF32, {3}}}, 0, {{none, none}}), kInvalid,
              {"compressions for 2 tensors", "1 tensors"});
}

TEST(LayoutTest, RoundsChunkBytesDownToWholeElements) {
  const Layout layout =
      Made({{"d", DType::kF64, {3}}, {"f", DType::kF32, {5}}, {"h", DType::kF16, {10}}}, 19);
  std::vector<uint64_t> elements;
  for (const Chunk& chunk : layout.chunks()) elements.push_back(chunk.elements);
  EXPECT_EQ(elements, (std::vector<uint64_t>{2, 1, 4, 1, 9, 1}));
}

TEST(LayoutTest, TakesAMebibyteForZeroChunkBytes) {
  const Layout layout = Made({{"w", DType::kF32, {2, 1 << 18}}}, 0);
  ASSERT_EQ(layout.chunks().size(), 2u);
  EXPECT_EQ(layout.chunks()[0].bytes(), kDefaultChunkBytes);
}

TEST(LayoutTest, CountsAScalarAsOneElement) {
  const Layout layout = Made({{"epoch", DType::kI64, {}}}, 0);
  ASSERT_EQ(layout.chunks().size(), 1u);
  EXPECT_EQ(Spans(layout, 0), "epoch[0,1)@0");
}

TEST(LayoutTest, CoversEveryElementOnceWithoutGaps) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", layout ", round));
    std::vector<TensorSpec> tensors;
    const size_t count = 1 + random() % 12;
    for (size_t t = 0; t < count; ++t) {
      TensorSpec tensor{absl::StrCat("t", t), kAllDTypes[random() % 6], {}};
      for (size_t axes = random() % 3; axes > 0; --axes) {
        tensor.shape.push_back(1 + static_cast<int64_t>(random() % 20));
      }
      tensors.push_back(std::move(tensor));
    }
    const auto chunk_bytes = static_cast<uint32_t>(8 + random() % 200);
    const Layout layout = Made(tensors, chunk_bytes);

    std::vector<uint64_t> covered(count);
    std::vector<Layout::ChunkRange> seen_in(count, {0, 0});
    uint64_t position = 0;
    for (uint32_t c = 0; c < layout.chunks().size(); ++c) {
      const Chunk& chunk = layout.chunks()[c];
      if (c > 0 && chunk.dtype != layout.chunks()[c - 1].dtype) {
        ASSERT_LT(layout.chunks()[c - 1].dtype, chunk.dtype);
        position = 0;
      }
      ASSERT_EQ(chunk.first_element, position);
      ASSERT_LE(chunk.bytes(), chunk_bytes);
      ASSERT_GT(chunk.elements, 0u);
      uint64_t in_chunk = 0;
      for (const Span& span : chunk.spans) {
        const size_t t = ToNumber(span.tensor);
        ASSERT_EQ(tensors[t].dtype, chunk.dtype);
        ASSERT_EQ(span.chunk_offset, in_chunk);
        ASSERT_EQ(span.tensor_offset, covered[t]);
        in_chunk += span.elements;
        covered[t] += span.elements;
        if (seen_in[t].count == 0) seen_in[t].first = c;
        ++seen_in[t].count;
      }
      ASSERT_EQ(in_chunk, chunk.elements);
      position += chunk.elements;
    }
    for (uint32_t t = 0; t < count; ++t) {
      ASSERT_EQ(covered[t], tensors[t].elements());
      ASSERT_EQ(layout.ChunksOf(TensorId{t}).first, seen_in[t].first);
      ASSERT_EQ(layout.ChunksOf(TensorId{t}).count, seen_in[t].count);
    }
  }
}

TEST(LayoutTest, RefusesAChunkSizeOutOfItsRangeAndSaysBoth) {
  const std::vector<TensorSpec> tensors = {{"w", DType::kF32, {2}}};
  EXPECT_THAT(Layout::Create(tensors, 8), IsOk());
  EXPECT_THAT(Layout::Create(tensors, kMaxChunkBytes), IsOk());
  ExpectError(Layout::Create(tensors, 7), kInvalid, {"chunk_bytes is 7", "8 to 4194304"});
  ExpectError(Layout::Create(tensors, kMaxChunkBytes + 1), kInvalid, {"4194305", "8 to 4194304"});
}

TEST(LayoutTest, RefusesTensorsThatCannotBeAndNamesThem) {
  ExpectError(Layout::Create({}, 0), kInvalid, {"no tensors"});
  ExpectError(Layout::Create({{"", DType::kF32, {2}}}, 0), kInvalid, {"empty name"});
  ExpectError(Layout::Create({{"w", DType::kF32, {2}}, {"w", DType::kF32, {2}}}, 0), kInvalid,
              {"\"w\"", "twice"});
  ExpectError(Layout::Create({{"w", DType{99}, {2}}}, 0), kInvalid, {"\"w\"", "99"});
  ExpectError(Layout::Create({{"w", DType::kF32, {3, 0, 2}}}, 0), kInvalid, {"\"w\"", "[3,0,2]"});
  ExpectError(Layout::Create({{"w", DType::kF32, {-4}}}, 0), kInvalid, {"\"w\"", "[-4]"});
  ExpectError(Layout::Create({{"w", DType::kF32, {int64_t{1} << 32, int64_t{1} << 32}}}, 0),
              kInvalid, {"\"w\"", "[4294967296,4294967296]", "2^48"});
  ExpectError(Layout::Create({{"v", DType::kF32, {int64_t{1} << 48}}, {"w", DType::kF32, {}}}, 0),
              kInvalid, {"\"w\"", "2^48"});
}

// Without this limit, one registration could use all memory of a server.
TEST(LayoutTest, RefusesMoreChunksThanCanBeKeptAndSaysHowMany) {
  EXPECT_THAT(Layout::Create({{"w", DType::kF32, {int64_t{1} << 28}}}, 16 << 10), IsOk());
  ExpectError(Layout::Create({{"w", DType::kF32, {(int64_t{1} << 28) + 1}}}, 16 << 10), kInvalid,
              {"65537 chunks of 16384 bytes", "65536"});
  ExpectError(Layout::Create({{"w", DType::kF32, {int64_t{1} << 28}}}, {16 << 10, 8 << 10}),
              kInvalid, {"65537 chunks", "65536"});
  ExpectError(Layout::Create({{"w", DType::kF64, {int64_t{1} << 48}}}, 4096), kInvalid, {"chunks"});
  ExpectError(
      Layout::Create(
          {{"v", DType::kF32, {int64_t{1} << 17}}, {"w", DType::kF16, {int64_t{1} << 18}}}, 8),
      kInvalid, {"131072 chunks", "65536"});
}

// A chunk costs a server some KiB, even if it is very short.
TEST(LayoutTest, RefusesShortChunksOfALargeGroupAndSaysBothSizes) {
  const std::vector<TensorSpec> mebibyte = {{"w", DType::kF32, {1 << 18}}};
  const std::vector<TensorSpec> more = {{"w", DType::kF32, {1 << 18}}, {"b", DType::kF32, {1}}};
  EXPECT_THAT(Layout::Create(mebibyte, 64), IsOk());
  EXPECT_THAT(Layout::Create(more, 4096), IsOk());
  ExpectError(Layout::Create(more, 4095), kInvalid,
              {"chunk_bytes is 4095", "1048580 bytes", "at least 4096"});
  ExpectError(Layout::Create({{"w", DType::kF64, {1 << 20}}}, 8), kInvalid, {"at least 4096"});
  ExpectError(Layout::Create({{"w", DType::kF64, {1 << 20}}}, {1 << 20, 4095}), kInvalid,
              {"first_chunk_bytes is 4095", "at least 4096"});
}

// The time for each tensor does not depend on the number of tensors. An algorithm that compares
// every pair of tensors would take hours here.
TEST(LayoutTest, TakesAsLongForEachOfManyTensors) {
  std::vector<TensorSpec> tensors;
  std::vector<Compression> compression;
  const auto add = [&](uint32_t count) {
    while (tensors.size() < count) {
      const size_t t = tensors.size();
      tensors.push_back({absl::StrCat("layer", t, "/kernel"), DType::kF32, {3}});
      compression.push_back({{Codec::kTopK, 1e-3 + 1e-7 * static_cast<double>(t)}, {}});
    }
  };
  add(50'000);
  const absl::StatusOr<Layout> apart = Layout::Create(tensors, 0, compression);
  ASSERT_THAT(apart, IsOk());
  EXPECT_EQ(apart->chunks().size(), 50'000u) << "no two share a chunk";
  add(260'000);
  ExpectError(Layout::Create(tensors, 0, compression), kInvalid, {"260000 chunks", "65536"});
  EXPECT_EQ(Made(tensors, 0).chunks().size(), 3u);
  // NaN is not equal to itself, so these encodings are all different.
  for (Compression& one : compression) one.push.fraction = std::nan("");
  ExpectError(Layout::Create(tensors, 0, compression), kInvalid, {"\"layer0/kernel\"", "nan"});
}

TEST(LayoutTest, RefusesNamesThatAreLongOrNotPrintable) {
  const auto named = [](const std::string& name) {
    return Layout::Create({{name, DType::kF32, {2}}}, 0);
  };
  EXPECT_THAT(named(std::string(512, 'a')), IsOk());
  ExpectError(named(std::string(513, 'a')), kInvalid, {"tensor", "513 bytes", "512"});
  ExpectError(named("a\nb"), kInvalid, {"tensor", "a\\x0ab"});
  std::vector<TensorSpec> tensors;
  for (int t = 0; t < 100'000; ++t) {
    tensors.push_back({absl::StrCat(t, std::string(54, 'a')), DType::kF32, {1}});
  }
  EXPECT_THAT(Layout::Create(tensors, 0), IsOk());
  for (TensorSpec& tensor : tensors) tensor.name += std::string(60, 'b');
  ExpectError(Layout::Create(tensors, 0), kInvalid, {"names", "8388608"});
}

TEST(LayoutTest, RefusesMoreTensorsThanAGroupMayHaveAndSaysBoth) {
  std::vector<TensorSpec> tensors;
  while (tensors.size() < kMaxTensors) {
    tensors.push_back({absl::StrCat(tensors.size()), DType::kF32, {}});
  }
  EXPECT_THAT(Layout::Create(tensors, 0), IsOk());
  tensors.push_back({"one more", DType::kF32, {}});
  ExpectError(Layout::Create(tensors, 0), kInvalid, {"262145 tensors", "at most 262144"});
}

TEST(LayoutTest, RefusesMoreAxesThanAnArrayHas) {
  EXPECT_THAT(Layout::Create({{"w", DType::kF32, std::vector<int64_t>(64, 1)}}, 0), IsOk());
  ExpectError(Layout::Create({{"w", DType::kF32, std::vector<int64_t>(65, 1)}}, 0), kInvalid,
              {"\"w\"", "65 axes", "64"});
}

}  // namespace
}  // namespace syncgrads
