#include "server/state/state_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/state/mapped_file.h"
#include "server/state/slots.h"
#include "tests/common/expect_error.h"
#include "tests/server/state/example_state.h"
#include "tests/testing/files_in.h"

namespace syncgrads::server {
namespace {

constexpr uint64_t kRoom = 1 << 20;

class StateFileTest : public ::testing::Test {
 protected:
  StateFileTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~StateFileTest() override { std::filesystem::remove_all(folder_); }

  RoundRecord RecordOf(size_t position, uint64_t round) const {
    return ExampleRecord(layout_, position, round);
  }

  SlotPool PoolOf(std::shared_ptr<SlotSource> source, size_t position) const {
    return SlotPool({layout_.chunks[position].value_bytes, 2, layout_.chunks[position].spans},
                    std::move(source), position);
  }

  // Closes the rounds `first` to `last` of both chunks, as a server does.
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
  StateLayout layout_ = ExampleLayout();
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
    // The slots of both rounds are held, so this slot lies in a file of its own.
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
    std::vector<std::shared_ptr<Slot>> held;  // held by a member that stopped reading
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

// A server died before it had stored that there is this group.
TEST_F(StateFileTest, WhatLiesWhereAFileIsMadeIsRemoved) {
  std::filesystem::create_directory(path_ + ".further");
  std::ofstream(path_) << "left behind";
  std::ofstream(path_ + ".further/0.0") << "left behind";
  CreateOrDie();
  EXPECT_EQ(testing::FilesIn(folder_), 1u);
  EXPECT_THAT(Opened(), IsOk());
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

size_t Descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST_F(StateFileTest, NoFileTakesADescriptor) {
  const size_t before = Descriptors();
  const std::shared_ptr<StateFile> file = CreateOrDie();
  SlotPool pool = PoolOf(file, 0);
  std::vector<std::shared_ptr<Slot>> held;
  for (uint64_t round = 1; round <= 5; ++round) held.push_back(*pool.Acquire());
  EXPECT_EQ(Descriptors(), before);
  const auto opened = StateFile::Open(path_, layout_);
  ASSERT_THAT(opened, IsOk());
  EXPECT_EQ(Descriptors(), before);
}

TEST_F(StateFileTest, TheFileIsSharedUntilItIsDeleted) {
  const std::shared_ptr<StateFile> file = CreateOrDie();
  SlotPool pool = PoolOf(file, 0);
  const std::shared_ptr<Slot> slot = *pool.Acquire();
  Fill(*slot, 9);
  const auto descriptor = file->ReadOnlyDescriptor();
  ASSERT_THAT(descriptor, IsOk());
  char byte = 0;
  EXPECT_EQ(pread(descriptor->get(), &byte, 1, static_cast<off_t>(*slot->arena_offset)), 1);
  EXPECT_EQ(byte, 9);
  EXPECT_EQ(write(descriptor->get(), &byte, 1), -1);
  // After the file was replaced, the file of the same name is not the mapped one.
  StateFile::Remove(path_);
  ExpectError(file->ReadOnlyDescriptor(), absl::StatusCode::kUnavailable, {path_});
  std::ofstream(path_) << "another";
  ExpectError(file->ReadOnlyDescriptor(), absl::StatusCode::kUnavailable, {path_, "another file"});
}

TEST_F(StateFileTest, FurtherSlotsThatNobodyNeedsForLongAreGivenBack) {
  const std::shared_ptr<StateFile> file = CreateOrDie();
  const auto files = [this] { return testing::FilesIn(folder_); };
  SlotPool pool = PoolOf(file, 0);
  std::vector<std::shared_ptr<Slot>> held;  // held by a member that stopped reading
  std::shared_ptr<Slot> newest, one_before;
  uint64_t round = 0;
  const auto close = [&] {
    std::shared_ptr<Slot> slot = *pool.Acquire();
    Fill(*slot, ++round);
    Publish(RecordOf(0, round), *slot);
    one_before = std::exchange(newest, slot);
    return slot;
  };
  for (int i = 0; i < 10; ++i) held.push_back(close());
  EXPECT_EQ(files(), 1u + 8u);
  held.clear();
  for (uint64_t i = 0; i <= SlotPool::kIdleRounds + 2; ++i) close();
  EXPECT_EQ(files(), 1u + 1u);  // three slots are needed, and the state file has two
  const auto opened = StateFile::Open(path_, layout_);
  ASSERT_THAT(opened, IsOk());
  SlotPool again = PoolOf(*opened, 0);
  const std::vector<SlotPool::Kept> kept = again.TakeKept();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].record.round, Round{round});
  EXPECT_EQ(kept[1].record.round, Round{round - 1});
}

TEST_F(StateFileTest, AFileOfThePoolsThatIsDeletedIsNoOtherOfItsName) {
  const std::shared_ptr<StateFile> file = CreateOrDie();
  SlotPool pool = PoolOf(file, 0);
  {
    std::vector<std::shared_ptr<Slot>> held;
    for (int i = 0; i < 4; ++i) held.push_back(*pool.Acquire());
  }
  StateFile::Remove(path_);
  const std::string directory = path_ + ".further";
  std::filesystem::create_directory(directory);
  std::ofstream(directory + "/0.0") << "another";
  for (uint64_t i = 0; i < 2 * SlotPool::kIdleRounds; ++i) ASSERT_THAT(pool.Acquire(), IsOk());
  EXPECT_TRUE(std::filesystem::exists(directory + "/0.0"));
}

// A flipped bit anywhere in a published round is detected. A flipped bit in bytes that nothing has
// written does not matter.
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
  // At least the header, words, records and all arrays of two chunks and two rounds.
  EXPECT_GT(found, 2 * 2 * (3 * 40 + 72));
  EXPECT_GT(zeros, 0u) << "there is padding";
  EXPECT_THAT(Opened(), IsOk());
}

TEST_F(StateFileTest, TheRoundTheChunkAndTheFileAreNamed) {
  Close(CreateOrDie(), 8, 9);
  FlipBit(4096 + 10);  // in the values of the first chunk's first set
  ExpectError(Opened(), absl::StatusCode::kDataLoss, {path_, "chunk 0", "round ", "checksum"});
}

// A page was never written back: the previous round must not be restored as the newest.
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
  const absl::Status refused = MappedFile::Create(path_, uint64_t{1} << 50, ~uint64_t{0}).status();
  EXPECT_GT(room, 0u);
  ExpectError(refused, absl::StatusCode::kResourceExhausted,
              {path_, absl::StrCat(uint64_t{1} << 50)});
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace syncgrads::server
