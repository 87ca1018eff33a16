#include "server/core/rounds/non_finite.h"

#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/closing/segments.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A group with tensors "a" of 3, "b" of 4 and "c" of 2 elements in one chunk.
const GroupPlan& ThreeSpans() {
  static const GroupPlan& plan = *new GroupPlan(
      PlanOf({"model",
              {{"a", DType::kF32, {3}}, {"b", DType::kF32, {2, 2}}, {"c", DType::kF32, {2}}},
              Reduction::kAverage}));
  return plan;
}
const Chunk& TheChunk() { return ThreeSpans().layout.chunks()[0]; }

Contribution Of(const std::vector<float>& values, std::vector<uint32_t> absent = {},
                std::vector<size_t> cuts = {}) {
  return {false, 2, std::move(absent), PayloadOf(BytesOf(values), std::move(cuts))};
}

std::vector<float> ValuesIn(const Contribution& contribution) {
  std::vector<float> values(TotalBytes(contribution.payload.pieces) / sizeof(float));
  PieceCursor(&contribution.payload.pieces)
      .Read(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float));
  return values;
}

TEST(FindNonFiniteTest, IsTheFirstOfEachSpan) {
  EXPECT_THAT(FindNonFinite(TheChunk(), Of({1, 2, 3, 4, 5, 6, 7, 8, 9})), IsEmpty());
  const std::vector<NonFinite> found =
      FindNonFinite(TheChunk(), Of({1, 2, 3, 4, 5, kNaN, kInfinity, 8, -kInfinity}));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].span, 1u);
  EXPECT_EQ(found[0].index, 2u);
  EXPECT_TRUE(found[0].value != found[0].value);
  EXPECT_EQ(found[1].span, 2u);
  EXPECT_EQ(found[1].index, 1u);
  EXPECT_EQ(found[1].value, -kInfinity);
}

TEST(FindNonFiniteTest, DoesNotDependOnWherePayloadsAreCut) {
  const std::vector<float> values = {1, 2, kNaN, 4, 5, kNaN, 7, kNaN, 9};
  for (size_t cut = 0; cut <= values.size() * sizeof(float); ++cut) {
    const std::vector<NonFinite> found = FindNonFinite(TheChunk(), Of(values, {}, {cut, cut}));
    ASSERT_EQ(found.size(), 3u) << "cut at " << cut;
    EXPECT_EQ(found[0].index, 2u);
    EXPECT_EQ(found[1].index, 2u);
    EXPECT_EQ(found[2].index, 0u);
  }
}

TEST(FindNonFiniteTest, PassesOverSpansThatAreAbsent) {
  const std::vector<NonFinite> found = FindNonFinite(TheChunk(), Of({1, 2, 3, kNaN, 9}, {1}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].span, 2u);
  EXPECT_EQ(found[0].index, 0u);
}

TEST(FindNonFiniteTest, CountsFromTheTensorsFirstElement) {
  // 40 elements in chunks of 16: element 20 is the fifth element of chunk 1.
  const GroupPlan plan = PlanOf({"model", {{"w", DType::kF32, {40}}}, Reduction::kAverage, 64});
  std::vector<float> values(16, 1);
  values[4] = kInfinity;
  const Chunk& chunk = plan.layout.chunks()[1];
  const std::vector<NonFinite> found = FindNonFinite(chunk, Of(values));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].index, 20u);
  EXPECT_EQ(ToString(plan, chunk, Round{7}, "w2", found[0]),
            "gradient \"w\" of worker \"w2\" is inf at index 20 in step 7 of group \"model\"");
}

TEST(WithoutSpansTest, KeepsTheOthersWhereverPayloadsAreCut) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (size_t cut = 0; cut <= values.size() * sizeof(float); ++cut) {
    const Contribution rest = WithoutSpans(TheChunk(), Of(values, {}, {cut}), {1});
    EXPECT_FALSE(rest.skip);
    EXPECT_EQ(rest.weight, 2);
    EXPECT_THAT(rest.absent_spans, ElementsAre(1));
    EXPECT_THAT(ValuesIn(rest), ElementsAre(1, 2, 3, 8, 9)) << "cut at " << cut;
  }
}

TEST(WithoutSpansTest, AddsToWhatIsAbsent) {
  const Contribution rest = WithoutSpans(TheChunk(), Of({1, 2, 3, 8, 9}, {1}), {0});
  EXPECT_THAT(rest.absent_spans, ElementsAre(0, 1));
  EXPECT_THAT(ValuesIn(rest), ElementsAre(8, 9));
}

TEST(WithoutSpansTest, OfAllIsASkip) {
  const Contribution rest = WithoutSpans(TheChunk(), Of({1, 2, 3, 8, 9}, {1}), {0, 2});
  EXPECT_TRUE(rest.skip);
  EXPECT_THAT(rest.absent_spans, IsEmpty());
  EXPECT_THAT(ValuesIn(rest), IsEmpty());
}

}  // namespace
}  // namespace syncgrads::server
