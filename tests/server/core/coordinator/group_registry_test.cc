#include "server/core/coordinator/group_registry.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

constexpr uint32_t kKiB = 1 << 10;

// Returns the chunk size that is chosen for a group with one tensor of 16 MiB on four servers.
uint32_t ChunkBytes(const Encoding& push, const Encoding& result,
                    const GroupRegistry::Path& path = {}, uint32_t asked = 0) {
  GroupSpec spec = {.name = "model",
                    .tensors = {{"a", DType::kF32, {4 << 20}}},
                    .chunk_bytes = asked,
                    .compression = {{push, result}}};
  MemoryBudget budget(4, [](ServerIndex) { return std::nullopt; });
  const GroupRegistry registry(4, {}, budget);
  const auto plan = registry.Plan(spec, path);
  return plan.ok() ? (*plan)->spec.chunk_bytes : 0;
}

TEST(GroupRegistryTest, ChoosesChunksThatLeaveAServerThirtyTwoOfThem) {
  EXPECT_EQ(ChunkBytes({}, {}), 128 * kKiB);
}

TEST(GroupRegistryTest, APlanIsItsDraftSoThatNothingIsCopiedUnderALock) {
  const GroupSpec spec = {.name = "model", .tensors = {{"a", DType::kF32, {4 << 20}}}};
  const auto draft = GroupRegistry::MakeDraft(spec, /*servers=*/4, {});
  ASSERT_THAT(draft, IsOk());
  EXPECT_EQ(draft->plan->spec.chunk_bytes, 128 * kKiB);
  const TensorSpec* const tensors = draft->plan->spec.tensors.data();
  MemoryBudget budget(4, [](ServerIndex) { return std::nullopt; });
  const GroupRegistry registry(4, {}, budget);
  const auto plan = registry.Plan(*draft);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ((*plan)->spec.tensors.data(), tensors);
  EXPECT_EQ((*plan)->servers.size(), (*plan)->layout.chunks().size());
}

TEST(GroupRegistryTest, ChoosesFewLargeChunksInSharedMemory) {
  const GroupRegistry::Path memory = {.shares_memory = true};
  EXPECT_EQ(ChunkBytes({}, {}, memory), 1024 * kKiB);
  EXPECT_EQ(ChunkBytes({Codec::kTopK, 0.01}, {Codec::kTopK, 0.01}, memory), 1024 * kKiB);
}

TEST(GroupRegistryTest, ChoosesChunksByTheBytesOfTheirMessages) {
  // A chunk of 128 KiB has 33 KiB when it is encoded.
  EXPECT_EQ(ChunkBytes({Codec::kInt8}, {Codec::kInt8}), 128 * kKiB);
  // A chunk of 1 MiB has 16 KiB when it is encoded. It is not larger, so that each server gets at
  // least four chunks.
  EXPECT_EQ(ChunkBytes({Codec::kTopK, 0.01}, {Codec::kTopK, 0.01}), 1024 * kKiB);
}

TEST(GroupRegistryTest, TakesTheWayWithMoreBytes) {
  EXPECT_EQ(ChunkBytes({Codec::kTopK, 0.01}, {}), ChunkBytes({}, {}));
  EXPECT_EQ(ChunkBytes({Codec::kTopK, 0.01}, {Codec::kInt8}),
            ChunkBytes({Codec::kInt8}, {Codec::kInt8}));
}

TEST(GroupRegistryTest, OnASlowLinkNoMessageTakesLong) {
  const auto at = [](double link_rate) { return ChunkBytes({}, {}, {.link_rate = link_rate}); };
  EXPECT_EQ(at(1e9), 128 * kKiB);
  EXPECT_EQ(at(60e6), 44 * kKiB) << "46.9 KiB in 0.8 ms";
  EXPECT_EQ(at(90e6), 68 * kKiB) << "70.3 KiB";
  EXPECT_EQ(at(25e6), 28 * kKiB);
  EXPECT_EQ(at(1), 28 * kKiB);
  EXPECT_EQ(at(std::numeric_limits<double>::min()), 28 * kKiB);
  EXPECT_EQ(ChunkBytes({}, {}, {.shares_memory = true, .link_rate = 25e6}), 1024 * kKiB);
  EXPECT_EQ(ChunkBytes({Codec::kInt8}, {Codec::kInt8}, {.link_rate = 25e6}), 112 * kKiB)
      << "28 KiB encoded";
}

TEST(GroupRegistryTest, LeavesASizeThatIsAskedForAsItIs) {
  EXPECT_EQ(ChunkBytes({Codec::kInt8}, {Codec::kInt8}, {}, 4096), 4096u);
}

TEST(GroupRegistryTest, ALinkRateThatIsNoPositiveNumberIsNotKnown) {
  for (const double rate : {std::nan(""), -1.0, 0.0, std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(ChunkBytes({}, {}, {.link_rate = rate}), 128 * kKiB) << rate;
  }
}

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

GroupSpec GroupOf(const std::string& name, int64_t elements, uint32_t chunk_bytes = 0) {
  return {name, {{"w", DType::kF32, {elements}}}, Reduction::kSum, chunk_bytes};
}

class GroupLimitsTest : public testing::Test {
 protected:
  absl::Status Register(GroupRegistry& registry, const GroupSpec& spec) {
    const auto plan = registry.Plan(spec, {});
    if (plan.ok()) registry.Add({*plan, "w0", ++sequence_});
    return plan.status();
  }

  std::optional<uint64_t> available_;
  MemoryBudget budget_{1, [this](ServerIndex) { return available_; }};
  uint64_t sequence_ = 0;
};

TEST_F(GroupLimitsTest, ChoosesChunksThatAGroupMayHave) {
  GroupRegistry registry(1, {}, budget_);
  // 32 GiB in the chunks of 28 KiB that suit a slow link would be more than a million chunks.
  const auto plan = registry.Plan(GroupOf("model", int64_t{1} << 33), {.link_rate = 25e6});
  ASSERT_THAT(plan, IsOk());
  EXPECT_LE((*plan)->layout.chunks().size(), kMaxChunks / 2);
}

TEST_F(GroupLimitsTest, AGroupThatCannotFitIsRefusedBeforeItIsPlanned) {
  GroupRegistry registry(1, {.max_chunks = 3000}, budget_);
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  // Not known.
  EXPECT_THAT(registry.CheckSize("model", 8 * kGiB, 0), IsOk());
  available_ = 20 * kGiB;
  EXPECT_THAT(registry.CheckSize("model", 6 * kGiB, 0), IsOk());
  ExpectError(registry.CheckSize("model", 8 * kGiB, 0), kExhausted,
              {"\"model\" of 8589934592 bytes", "25769803776 bytes", "21474836480 bytes"});
  ExpectError(registry.CheckSize("model", kGiB, 1 << 18), kExhausted,
              {"\"model\" has at least 4096 chunks", "at most 3000 (max_chunks)"});
  // What is registered counts.
  ASSERT_THAT(Register(registry, GroupOf("first", 3 << 28, 4 << 20)), IsOk());
  ExpectError(registry.CheckSize("model", 6 * kGiB, 0), kExhausted, {"not reserved"});
  // A group of few chunks is planned, which shows whether it fits.
  available_ = 0;
  EXPECT_THAT(registry.CheckSize("small", 1 << 20, 0), IsOk());
}

TEST_F(GroupLimitsTest, AJobHasSoManyGroups) {
  GroupRegistry registry(2, {.max_groups = 3}, budget_);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Register(registry, GroupOf(absl::StrCat("loss/", i), 1)), IsOk());
  }
  ExpectError(Register(registry, GroupOf("loss/3", 1)), kExhausted,
              {"\"loss/3\"", "3 groups", "at most 3 (max_groups)", "used again"});
  EXPECT_NE(registry.Named("loss/0"), nullptr);
}

TEST_F(GroupLimitsTest, AJobHasSoManyChunks) {
  GroupRegistry registry(2, {.max_chunks = 100}, budget_);
  EXPECT_THAT(Register(registry, GroupOf("a", 4 * 60, 16)), IsOk());
  ExpectError(Register(registry, GroupOf("b", 4 * 41, 16)), kExhausted,
              {"\"b\" has 41 chunks of 16 bytes", "other groups 60", "100 (max_chunks)"});
  EXPECT_THAT(Register(registry, GroupOf("b", 4 * 40, 16)), IsOk());
}

// 512 KiB of values in chunks of 8 bytes: the bookkeeping of the chunks exceeds the values.
TEST_F(GroupLimitsTest, WhatIsKeptOfEachChunkCounts) {
  available_ = 64 << 20;
  GroupRegistry registry(1, {}, budget_);
  ExpectError(Register(registry, GroupOf("bomb", 1 << 17, 8)), kExhausted,
              {"\"bomb\"", "524288 bytes in 65536 chunks", "67108864 bytes are available"});
  available_ = 512 << 20;
  EXPECT_THAT(Register(registry, GroupOf("bomb", 1 << 17, 8)), IsOk());
}

TEST_F(GroupLimitsTest, WhatIsKeptOfEachTensorAndItsNameCounts) {
  GroupSpec spec = GroupOf("model", 1);
  for (int t = 0; t < 10'000; ++t) {
    spec.tensors.push_back({absl::StrCat(t, std::string(400, 'a')), DType::kF32, {1}});
  }
  available_ = 4 << 20;
  GroupRegistry registry(1, {}, budget_);
  ExpectError(Register(registry, spec), kExhausted, {"\"model\"", "4194304 bytes"});
  available_ = 16 << 20;
  EXPECT_THAT(Register(registry, spec), IsOk());
}

TEST_F(GroupLimitsTest, WhatIsBeingAllocatedForAnotherJobIsNotFree) {
  available_ = 20 << 20;
  GroupRegistry first(2, {}, budget_), second(2, {}, budget_);
  const auto plan = first.Plan(GroupOf("model", 1 << 20), {});
  ASSERT_THAT(plan, IsOk());
  first.Reserve(**plan);
  for (const uint64_t allocated : {0, 5 << 20}) {
    available_ = (20 << 20) - allocated;
    ExpectError(Register(second, GroupOf("model", 3 << 18)), kExhausted, {"or allocated now"});
  }
  first.GiveUp();
  available_ = 20 << 20;
  EXPECT_THAT(Register(second, GroupOf("model", 3 << 18)), IsOk());
}

TEST_F(GroupLimitsTest, WhatAClosedJobHadIsFree) {
  available_ = 20 << 20;
  GroupRegistry first(2, {}, budget_), second(2, {}, budget_);
  // 4 MiB for 2 members: 8 MiB of contributions, and 8 MiB of results, which are allocated at once.
  EXPECT_THAT(Register(first, GroupOf("model", 1 << 20)), IsOk());
  available_ = *available_ - (8 << 20);
  // 3 MiB for 2 members: 12 MiB are needed and free, but the first job has not used its 8 MiB for
  // contributions yet.
  ExpectError(Register(second, GroupOf("model", 3 << 18)), kExhausted, {"are reserved"});
  first.Release();
  available_ = 20 << 20;
  EXPECT_THAT(Register(second, GroupOf("model", 3 << 18)), IsOk());
}

}  // namespace
}  // namespace syncgrads::server
