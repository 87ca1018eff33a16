#include "server/state/state_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/state/mapped_file.h"
#include "server/state/slots.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

constexpr uint64_t kRoom = 1 << 20;

class StateFileTest : public ::testing::Test {
 protected:
  StateFileTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    layout_.sequence = 3;
    layout_.generation = Generation{7};
    layout_.group = GroupId{2};
    layout_.optimizer_slots = 2;
    layout_.contributors = 4;
    layout_.chunks = {{ChunkId{0}, 100, 2}, {ChunkId{5}, 40, 1}};
  }
  ~StateFileTest() override { std::filesystem::remove_all(folder_); }

  RoundRecord RecordOf(size_t position, uint64_t round) const {
    RoundRecord record;
    record.generation = layout_.generation;
    record.group = layout_.group;
    record.chunk = layout_.chunks[position].id;
    record.round = Round{round};
    record.epoch = 4;
    record.value_bytes = layout_.chunks[position].value_bytes;
    record.counts.assign(layout_.chunks[position].spans, 3);
    record.contributors = {0, 1, 2};
    return record;
  }

  // A slot that says of every byte which round it belongs to.
  static void Fill(Slot& slot, uint64_t round) {
    std::memset(slot.values.data(), static_cast<int>(round), slot.values.size());
    for (AlignedBuffer& array : slot.optimizer) {
      std::memset(array.data(), static_cast<int>(round + 100), array.size());
    }
    std::fill(slot.updates.begin(), slot.updates.end(), round);
  }

  SlotPool PoolOf(std::shared_ptr<SlotSource> source, size_t position) const {
    return SlotPool({layout_.chunks[position].value_bytes, 2, layout_.chunks[position].spans},
                    std::move(source), position);
  }

  // Closes rounds up to `last` of both chunks, as a server does.
  void Close(std::shared_ptr<SlotSource> source, uint64_t first, uint64_t last) {
    for (size_t position : {0, 1}) {
      SlotPool pool = PoolOf(source, position);
      std::shared_ptr<Slot> newest;
      for (uint64_t round = first; round <= last; ++round) {
        std::shared_ptr<Slot> slot = *pool.Acquire(0, 3);
        Fill(*slot, round);
        Publish(RecordOf(position, round), *slot);
        newest = std::move(slot);
      }
    }
  }

  std::shared_ptr<StateFile> CreateOrDie() {
    auto created = StateFile::Create(path_, layout_, kRoom);
    EXPECT_THAT(created, IsOk());
    return *created;
  }
  absl::Status Opened() const { return StateFile::Open(path_, layout_).status(); }

  void FlipBit(uint64_t byte) const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(byte));
    const int was = file.get();
    file.seekp(static_cast<std::streamoff>(byte));
    file.put(static_cast<char>(was ^ 4));
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "/state_file_test");
  const std::string path_ = folder_ + "/group-3";
  StateLayout layout_;
};

TEST_F(StateFileTest, SpansOfAnOptimizerWithoutSlotsCountTheirUpdates) {
  layout_.optimizer_slots = 0;
  const std::shared_ptr<StateFile> file = CreateOrDie();
  SlotPool pool({layout_.chunks[0].value_bytes, 0, layout_.chunks[0].spans}, file, 0);
  EXPECT_EQ((*pool.Acquire(0, 3))->updates.size(), layout_.chunks[0].spans);
}

TEST_F(StateFileTest, KeepsTheTwoNewestRounds) {
  Close(CreateOrDie(), 1, 5);
  const auto opened = StateFile::Open(path_, layout_);
  ASSERT_THAT(opened, IsOk());
  SlotPool pool = PoolOf(*opened, 1);
  const std::vector<SlotPool::Kept> kept = pool.TakeKept();
  ASSERT_EQ(kept.size(), 2u);
  for (uint64_t i : {0, 1}) {
    const uint64_t round = 5 - i;
    EXPECT_EQ(kept[i].record, RecordOf(1, round));
    EXPECT_EQ(kept[i].slot->values.data()[39], static_cast<std::byte>(round));
    EXPECT_EQ(kept[i].slot->optimizer[1].data()[0], static_cast<std::byte>(round + 100));
    EXPECT_EQ(kept[i].slot->updates, std::vector<uint64_t>{round});
  }
}

TEST_F(StateFileTest, ARoundThatWasBeingWrittenIsNotThere) {
  const std::shared_ptr<StateFile> file = CreateOrDie();
  Close(file, 1, 5);
  const auto again = StateFile::Open(path_, layout_);
  ASSERT_THAT(again, IsOk());
  {
    SlotPool pool = PoolOf(*again, 0);
    const std::vector<SlotPool::Kept> kept = pool.TakeKept();
    // The slots of both rounds are held: this one lies in a further file.
    Fill(**pool.Acquire(), 6);
  }
  const auto opened = StateFile::Open(path_, layout_);
  ASSERT_THAT(opened, IsOk());
  SlotPool pool = PoolOf(*opened, 0);
  EXPECT_EQ(pool.TakeKept().front().record.round, Round{5});
}

TEST_F(StateFileTest, ASlotThatIsHeldIsNotWrittenAndAFurtherOneIsKept) {
  const std::shared_ptr<StateFile> file = CreateOrDie();
  {
    SlotPool pool = PoolOf(file, 0);
    std::vector<std::shared_ptr<Slot>> held;  // by a member that does not read on
    for (uint64_t round = 1; round <= 4; ++round) {
      held.push_back(*pool.Acquire());
      Fill(*held.back(), round);
      Publish(RecordOf(0, round), *held.back());
    }
    for (uint64_t round = 1; round <= 4; ++round) {
      EXPECT_EQ(held[round - 1]->values.data()[0], static_cast<std::byte>(round));
      EXPECT_EQ(held[round - 1]->arena_offset.has_value(), round <= 2);
    }
  }
  const auto opened = StateFile::Open(path_, layout_);
  ASSERT_THAT(opened, IsOk());
  SlotPool pool = PoolOf(*opened, 0);
  const std::vector<SlotPool::Kept> kept = pool.TakeKept();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].record.round, Round{4});
  EXPECT_EQ(kept[1].record.round, Round{3});
  StateFile::Remove(path_);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(StateFileTest, AResultThatIsLongerThanExpectedIsKept) {
  const std::shared_ptr<StateFile> file = CreateOrDie();
  RoundRecord record = RecordOf(0, 1);
  record.value_bytes = 1000;
  record.contributors.assign(40, 9);
  {
    SlotPool pool = PoolOf(file, 0);
    const std::shared_ptr<Slot> slot = *pool.Acquire(1000, 40);
    Fill(*slot, 1);
    Publish(record, *slot);
  }
  const auto opened = StateFile::Open(path_, layout_);
  ASSERT_THAT(opened, IsOk());
  SlotPool pool = PoolOf(*opened, 0);
  EXPECT_EQ(pool.TakeKept().front().record, record);
}

// Whatever of a published round is flipped, the file is found to be damaged; what
// nothing has been written to does not matter.
TEST_F(StateFileTest, EveryFlippedBitOfWhatIsKeptIsFound) {
  Close(CreateOrDie(), 1, 2);
  ASSERT_THAT(Opened(), IsOk());
  std::string clean(std::filesystem::file_size(path_), '\0');
  std::ifstream(path_, std::ios::binary).read(clean.data(), static_cast<long>(clean.size()));
  size_t found = 0, zeros = 0;
  for (size_t byte = 0; byte < clean.size(); ++byte) {
    FlipBit(byte);
    const absl::Status status = Opened();
    FlipBit(byte);
    if (status.ok()) {
      EXPECT_EQ(clean[byte], 0) << "byte " << byte;
      ++zeros;
      continue;
    }
    ++found;
    ExpectError(status, absl::StatusCode::kDataLoss, {path_});
  }
  // Header, words, records and all arrays, of two chunks and two rounds.
  EXPECT_GT(found, 2 * 2 * (3 * 40 + 72));
  EXPECT_GT(zeros, 0u) << "there is padding";
  EXPECT_THAT(Opened(), IsOk());
}

TEST_F(StateFileTest, TheRoundTheChunkAndTheFileAreNamed) {
  Close(CreateOrDie(), 8, 9);
  FlipBit(4096 + 10);  // the first chunk's values in the first set
  ExpectError(Opened(), absl::StatusCode::kDataLoss, {path_, "chunk 0", "round ", "checksum"});
}

// A page that was never written back: the round before must not come back as the
// newest.
TEST_F(StateFileTest, ANewestRoundThatHasVanishedIsMissed) {
  const std::shared_ptr<StateFile> file = CreateOrDie();
  Close(file, 1, 5);
  {
    const auto again = StateFile::Open(path_, layout_);
    SlotPool pool = PoolOf(*again, 0);
    MakeVacant(*pool.TakeKept().front().slot);
  }
  ExpectError(Opened(), absl::StatusCode::kDataLoss, {"chunk 0", "round 4", "round 5"});
}

TEST_F(StateFileTest, ACutFileIsFound) {
  Close(CreateOrDie(), 1, 2);
  const uint64_t size = std::filesystem::file_size(path_);
  for (const uint64_t cut : {uint64_t{0}, uint64_t{10}, uint64_t{4096}, size - 1}) {
    std::filesystem::resize_file(path_, cut);
    ExpectError(Opened(), absl::StatusCode::kDataLoss, {path_, absl::StrCat(cut)});
  }
}

TEST_F(StateFileTest, AFileOfAnotherLayoutOrGenerationIsNotTaken) {
  Close(CreateOrDie(), 1, 2);
  layout_.generation = Generation{8};
  ExpectError(Opened(), absl::StatusCode::kDataLoss, {path_, "generation is 7", "8"});
  layout_.generation = Generation{7};
  layout_.chunks[1].spans = 2;
  ExpectError(Opened(), absl::StatusCode::kDataLoss, {path_});
}

TEST_F(StateFileTest, AFileThatIsNotThereIsNotFound) {
  ExpectError(Opened(), absl::StatusCode::kNotFound, {path_});
}

TEST_F(StateFileTest, TooLittleRoomIsRefusedWithBothNumbers) {
  const uint64_t needed = StateFile::BytesFor(layout_);
  ExpectError(StateFile::Create(path_, layout_, needed - 1).status(),
              absl::StatusCode::kResourceExhausted,
              {path_, absl::StrCat(needed), absl::StrCat(needed - 1)});
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_THAT(StateFile::Create(path_, layout_, needed), IsOk());
  EXPECT_EQ(std::filesystem::file_size(path_), needed);
}

TEST_F(StateFileTest, WhatTheFileSystemDoesNotHaveIsRefusedWithBothNumbers) {
  const uint64_t room = RoomIn(folder_);
  const absl::Status refused = CreateMappedFile(path_, uint64_t{1} << 50, ~uint64_t{0}).status();
  EXPECT_GT(room, 0u);
  ExpectError(refused, absl::StatusCode::kResourceExhausted,
              {path_, absl::StrCat(uint64_t{1} << 50)});
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace syncgrads::server
