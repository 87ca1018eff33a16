#include "server/core/group_registry.h"

#include <cstdint>
#include <optional>

#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

constexpr uint32_t kKiB = 1 << 10;

// Of one tensor of 16 MiB on four servers.
uint32_t ChunkBytes(const Encoding& push, const Encoding& result, bool shares_memory = false,
                    uint32_t asked = 0) {
  GroupSpec spec = {.name = "model",
                    .tensors = {{"a", DType::kF32, {4 << 20}}},
                    .chunk_bytes = asked,
                    .compression = {{push, result}}};
  const GroupRegistry registry(4, [](ServerIndex) { return std::nullopt; });
  const auto plan = registry.Plan(spec, 4, shares_memory);
  return plan.ok() ? (*plan)->spec.chunk_bytes : 0;
}

TEST(GroupRegistryTest, ChoosesChunksThatLeaveAServerThirtyTwoOfThem) {
  EXPECT_EQ(ChunkBytes({}, {}), 128 * kKiB);
}

TEST(GroupRegistryTest, ChoosesFewLargeChunksInSharedMemory) {
  EXPECT_EQ(ChunkBytes({}, {}, /*shares_memory=*/true), 1024 * kKiB);
  EXPECT_EQ(ChunkBytes({Codec::kTopK, 0.01}, {Codec::kTopK, 0.01}, true), 1024 * kKiB);
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

TEST(GroupRegistryTest, LeavesASizeThatIsAskedForAsItIs) {
  EXPECT_EQ(ChunkBytes({Codec::kInt8}, {Codec::kInt8}, false, 4096), 4096u);
}

}  // namespace
}  // namespace syncgrads::server
