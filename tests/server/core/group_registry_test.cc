#include "server/core/group_registry.h"

#include <cstdint>
#include <optional>

#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

constexpr uint32_t kKiB = 1 << 10;

// Of one tensor of 16 MiB on four servers.
uint32_t ChunkBytes(const Encoding& push, const Encoding& result,
                    const GroupRegistry::Path& path = {}, uint32_t asked = 0) {
  GroupSpec spec = {.name = "model",
                    .tensors = {{"a", DType::kF32, {4 << 20}}},
                    .chunk_bytes = asked,
                    .compression = {{push, result}}};
  const GroupRegistry registry(4, [](ServerIndex) { return std::nullopt; });
  const auto plan = registry.Plan(spec, 4, path);
  return plan.ok() ? (*plan)->spec.chunk_bytes : 0;
}

TEST(GroupRegistryTest, ChoosesChunksThatLeaveAServerThirtyTwoOfThem) {
  EXPECT_EQ(ChunkBytes({}, {}), 128 * kKiB);
}

TEST(GroupRegistryTest, ChoosesFewLargeChunksInSharedMemory) {
  const GroupRegistry::Path memory = {.shares_memory = true};
  EXPECT_EQ(ChunkBytes({}, {}, memory), 1024 * kKiB);
  EXPECT_EQ(ChunkBytes({Codec::kTopK, 0.01}, {Codec::kTopK, 0.01}, memory), 1024 * kKiB);
}

TEST(GroupRegistryTest, ChoosesChunksByTheBytesOfTheirMessages) {
  // 33 KiB encoded.
  EXPECT_EQ(ChunkBytes({Codec::kInt8}, {Codec::kInt8}), 128 * kKiB);
  // Encoded they have 16 KiB: each server gets at least four.
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
  EXPECT_EQ(ChunkBytes({}, {}, {.shares_memory = true, .link_rate = 25e6}), 1024 * kKiB);
  EXPECT_EQ(ChunkBytes({Codec::kInt8}, {Codec::kInt8}, {.link_rate = 25e6}), 112 * kKiB)
      << "28 KiB encoded";
}

TEST(GroupRegistryTest, LeavesASizeThatIsAskedForAsItIs) {
  EXPECT_EQ(ChunkBytes({Codec::kInt8}, {Codec::kInt8}, {}, 4096), 4096u);
}

}  // namespace
}  // namespace syncgrads::server
