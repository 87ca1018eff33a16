#include "server/state/slots.h"

#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/state/arena.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

TEST(SlotPoolTest, MakesSlotsOfItsShape) {
  SlotPool pool({100, 2, 3});
  const std::shared_ptr<Slot> slot = *pool.Acquire();
  EXPECT_EQ(slot->values.size(), 100u);
  ASSERT_EQ(slot->optimizer.size(), 2u);
  EXPECT_EQ(slot->optimizer[1].size(), 100u);
  EXPECT_EQ(slot->updates.size(), 3u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slot->values.data()) % 64, 0u);
}

TEST(SlotPoolTest, WritesNoSlotAgainThatSomebodyHolds) {
  SlotPool pool({8, 0, 0});
  const std::shared_ptr<Slot> newest = *pool.Acquire();
  std::shared_ptr<Slot> before = *pool.Acquire();
  EXPECT_NE(newest->values.data(), before->values.data());
  const std::byte* const memory = before->values.data();
  const std::shared_ptr<Slot> in_flight = before;
  before = nullptr;
  EXPECT_NE((*pool.Acquire())->values.data(), memory);
}

TEST(SlotPoolTest, UsesASlotAgainThatEverybodyHasLetGoOf) {
  SlotPool pool({1 << 20, 1, 0});
  std::shared_ptr<Slot> slot = *pool.Acquire();
  const std::byte* const memory = slot->values.data();
  slot = nullptr;
  EXPECT_EQ((*pool.Acquire())->values.data(), memory);
}

TEST(SlotPoolTest, GrowsWithTheResult) {
  SlotPool pool({8, 0, 0});
  EXPECT_EQ((*pool.Acquire(40))->values.size(), 40u);
  EXPECT_GE((*pool.Acquire(16))->values.size(), 16u);
}

TEST(SlotPoolTest, SlotsMayOutliveThePool) {
  std::shared_ptr<Slot> slot;
  {
    SlotPool pool({8, 0, 0});
    slot = *pool.Acquire();
  }
  std::memset(slot->values.data(), 1, 8);
}

TEST(SlotPoolTest, TakesSlotsOfTheArenaWhileThereAreSome) {
  const size_t bytes[] = {100, 30};
  absl::StatusOr<std::shared_ptr<Arena>> arena = Arena::Create("test", bytes, 1);
  ASSERT_THAT(arena, IsOk());
  SlotPool pool({30, 1, 2}, *arena, 1);
  std::shared_ptr<Slot> first = *pool.Acquire(), second = *pool.Acquire(), third = *pool.Acquire();
  ASSERT_TRUE(first->arena_offset.has_value());
  ASSERT_TRUE(second->arena_offset.has_value());
  EXPECT_FALSE(third->arena_offset.has_value());
  EXPECT_NE(first->arena_offset, second->arena_offset);
  EXPECT_EQ(first->updates.size(), 2u);
  const uint64_t offset = *first->arena_offset;
  first = nullptr;
  EXPECT_EQ((*pool.Acquire())->arena_offset, offset);
  EXPECT_FALSE((*pool.Acquire(31))->arena_offset.has_value()) << "there is room for 30";
}

TEST(ArenaTest, GivesEveryChunkMemoryOfItsOwn) {
  const size_t bytes[] = {100, 30, 64};
  absl::StatusOr<std::shared_ptr<Arena>> arena = Arena::Create("test", bytes, 2);
  ASSERT_THAT(arena, IsOk());
  std::vector<std::unique_ptr<Slot>> slots;
  unsigned char mark = 0;
  const auto each = [&slots](auto visit) {
    for (const std::unique_ptr<Slot>& slot : slots) {
      visit(slot->values);
      for (AlignedBuffer& buffer : slot->optimizer) visit(buffer);
    }
  };
  for (size_t set = 0; set < Arena::kSets; ++set) {
    for (size_t position = 0; position < 3; ++position) {
      slots.push_back((*arena)->MakeSlot(set, position));
      EXPECT_EQ(slots.back()->values.size(), bytes[position]);
      EXPECT_EQ(*slots.back()->arena_offset % 64, 0u);
    }
  }
  each([&mark](AlignedBuffer& buffer) { std::memset(buffer.data(), ++mark, buffer.size()); });
  mark = 0;
  each([&mark](AlignedBuffer& buffer) {
    ++mark;
    for (std::byte byte : buffer.span()) ASSERT_EQ(byte, std::byte{mark});
  });
}

TEST(SlotPoolTest, IsUsedByManyThreadsAtOnce) {
  SlotPool pool({64, 1, 1});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 500; ++i) {
        const std::shared_ptr<Slot> slot = *pool.Acquire();
        std::memset(slot->values.data(), t, 64);
        for (std::byte byte : slot->values.span()) ASSERT_EQ(byte, static_cast<std::byte>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace syncgrads::server
