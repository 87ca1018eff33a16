#include "server/state/record_log.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RecordLogTest : public ::testing::Test {
 protected:
  ~RecordLogTest() override { std::filesystem::remove(path_); }

  absl::StatusOr<std::vector<std::string>> Records() const {
    std::vector<std::string> records;
    const auto log = RecordLog::Open(path_, records);
    if (!log.ok()) return log.status();
    return records;
  }
  std::string Contents() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& contents) const {
    std::ofstream(path_, std::ios::binary) << contents;
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/record_log_test");
};

TEST_F(RecordLogTest, KeepsRecordsInOrder) {
  {
    const auto log = RecordLog::Create(path_, "start");
    ASSERT_THAT(log, IsOk());
    ASSERT_THAT((*log)->Append("one"), IsOk());
    ASSERT_THAT((*log)->Append(""), IsOk());
  }
  {
    std::vector<std::string> records;
    const auto log = RecordLog::Open(path_, records);
    ASSERT_THAT(log, IsOk());
    EXPECT_THAT(records, ElementsAre("start", "one", ""));
    ASSERT_THAT((*log)->Append(std::string(100000, 'x')), IsOk());
    EXPECT_EQ((*log)->bytes(), std::filesystem::file_size(path_));
  }
  EXPECT_THAT(*Records(), ElementsAre("start", "one", "", std::string(100000, 'x')));
}

TEST_F(RecordLogTest, BeginsAgainInPlaceOfWhatWasThere) {
  ASSERT_THAT(RecordLog::Create(path_, "old"), IsOk());
  const auto log = RecordLog::Create(path_, "new");
  ASSERT_THAT((*log)->Append("more"), IsOk());
  EXPECT_THAT(*Records(), ElementsAre("new", "more"));
}

// A process that is killed leaves a part of its last record.
TEST_F(RecordLogTest, IsCutAtEveryByteAndGoesOn) {
  std::vector<size_t> ends;
  {
    const auto log = RecordLog::Create(path_, "start");
    ends.push_back((*log)->bytes());
    for (const char* record : {"first", "the second", ""}) {
      ASSERT_THAT((*log)->Append(record), IsOk());
      ends.push_back((*log)->bytes());
    }
  }
  const std::vector<std::string> all = *Records();
  const std::string whole = Contents();
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    Write(whole.substr(0, cut));
    if (cut < ends[0]) {
      ExpectError(Records().status(), absl::StatusCode::kDataLoss, {path_});
      continue;
    }
    std::vector<std::string> expected;
    for (size_t i = 0; i < ends.size() && ends[i] <= cut; ++i) expected.push_back(all[i]);
    std::vector<std::string> records;
    const auto log = RecordLog::Open(path_, records);
    ASSERT_THAT(log, IsOk());
    EXPECT_EQ(records, expected) << "cut at " << cut;
    ASSERT_THAT((*log)->Append("after"), IsOk());
    expected.push_back("after");
    EXPECT_EQ(*Records(), expected) << "cut at " << cut;
  }
}

TEST_F(RecordLogTest, EveryFlippedBitIsDamage) {
  {
    const auto log = RecordLog::Create(path_, "start");
    ASSERT_THAT((*log)->Append("one"), IsOk());
    ASSERT_THAT((*log)->Append("two"), IsOk());
  }
  const std::string whole = Contents();
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    Write(flipped);
    ExpectError(Records().status(), absl::StatusCode::kDataLoss, {path_, "record"});
  }
}

TEST_F(RecordLogTest, AFileThatIsLargerThanMemoryIsReadUpToTheDamage) {
  ASSERT_THAT(RecordLog::Create(path_, "start"), IsOk());
  std::filesystem::resize_file(path_, uintmax_t{1} << 42);  // with a hole
  ExpectError(Records().status(), absl::StatusCode::kDataLoss, {path_, "record 1", "head"});
}

TEST_F(RecordLogTest, ARecordThatIsMissingInTheMiddleIsDamage) {
  size_t first = 0, second = 0;
  {
    const auto log = RecordLog::Create(path_, "start");
    first = (*log)->bytes();
    ASSERT_THAT((*log)->Append("one"), IsOk());
    second = (*log)->bytes();
    ASSERT_THAT((*log)->Append("two"), IsOk());
  }
  const std::string whole = Contents();
  Write(whole.substr(0, first) + whole.substr(second));
  ExpectError(Records().status(), absl::StatusCode::kDataLoss, {"record 1"});
}

TEST_F(RecordLogTest, WhatIsNotThereIsNotFound) {
  ExpectError(Records().status(), absl::StatusCode::kNotFound, {path_});
}

// A disk with room for `room` bytes of one file, like a tmpfs of that size.
class SmallDisk : public LogDisk {
 public:
  explicit SmallDisk(off_t room) : room_(room) {}
  int Allocate(int file, off_t offset, off_t length) const override {
    if (offset + length > room_) {
      errno = ENOSPC;
      return -1;
    }
    return LogDisk::Allocate(file, offset, length);
  }
  ssize_t Write(int file, const void* data, size_t size) const override {
    struct stat status;
    EXPECT_EQ(fstat(file, &status), 0);
    const auto left = static_cast<size_t>(std::max<off_t>(0, room_ - status.st_size));
    if (left > 0) return LogDisk::Write(file, data, std::min(left, size));
    errno = ENOSPC;
    return -1;
  }
  void SetRoom(off_t room) { room_ = room; }

 private:
  off_t room_;
};

TEST_F(RecordLogTest, ARecordThatAFullDiskTakesInHalfIsNotThereAndOthersAre) {
  const SmallDisk disk(400);
  const RecordLogOptions options{.disk = &disk};
  const auto log = RecordLog::Create(path_, "start", options);
  ASSERT_THAT(log, IsOk());
  for (int i = 0; i < 2; ++i) {
    ExpectError((*log)->Append(std::string(1000, 'x')), absl::StatusCode::kResourceExhausted,
                {path_, "No space"});
    EXPECT_EQ(std::filesystem::file_size(path_), (*log)->bytes());
  }
  ASSERT_THAT((*log)->Append("small"), IsOk());
  EXPECT_THAT(*Records(), ElementsAre("start", "small"));
}

TEST_F(RecordLogTest, WhatHasToBeWrittenIsWrittenFromTheReserve) {
  SmallDisk disk(1 << 20);
  const RecordLogOptions options{.reserve = 10000, .disk = &disk};
  const auto log = RecordLog::Create(path_, "start", options);
  ASSERT_THAT(log, IsOk());
  ASSERT_THAT((*log)->Append("one"), IsOk());
  disk.SetRoom(static_cast<off_t>((*log)->bytes() + (*log)->reserved()));
  std::vector<std::string> expected = {"start", "one"};
  // Append accepts records until only the reserve is left.
  absl::Status appended;
  while ((appended = (*log)->Append(std::string(1000, 'x'))).ok()) {
    expected.push_back(std::string(1000, 'x'));
  }
  ExpectError(appended, absl::StatusCode::kResourceExhausted, {path_, "No space"});
  EXPECT_GE((*log)->reserved(), 10000u);
  EXPECT_LT((*log)->reserved(), 12000u);
  for (int i = 0; i < 9; ++i) {
    ASSERT_THAT((*log)->AppendFromReserve(std::string(1000, 'y')), IsOk());
    expected.push_back(std::string(1000, 'y'));
    EXPECT_FALSE((*log)->Append("").ok());
  }
  EXPECT_EQ(*Records(), expected);
  // The reserve is refilled before any other record is appended.
  disk.SetRoom(1 << 20);
  ASSERT_THAT((*log)->Append("more"), IsOk());
  EXPECT_GE((*log)->reserved(), 10000u);
}

TEST_F(RecordLogTest, OpensOnAFullDisk) {
  { ASSERT_THAT(RecordLog::Create(path_, "start"), IsOk()); }
  Write(Contents() + "half a head");
  SmallDisk disk(static_cast<off_t>(std::filesystem::file_size(path_)));
  std::vector<std::string> records;
  const auto log = RecordLog::Open(path_, records, {.reserve = 10000, .disk = &disk});
  ASSERT_THAT(log, IsOk());
  EXPECT_THAT(records, ElementsAre("start"));
  EXPECT_FALSE((*log)->Append("one").ok());
  disk.SetRoom(1 << 20);
  EXPECT_THAT((*log)->Append("one"), IsOk());
  EXPECT_THAT(*Records(), ElementsAre("start", "one"));
}

TEST_F(RecordLogTest, KeepsItsReserveOverARestart) {
  SmallDisk disk(1 << 20);
  const RecordLogOptions options{.reserve = 100000, .disk = &disk};
  const auto blocks = [this] {
    struct stat status;
    EXPECT_EQ(stat(path_.c_str(), &status), 0);
    return status.st_blocks * 512;
  };
  { ASSERT_THAT(RecordLog::Create(path_, "start", options), IsOk()); }
  EXPECT_GE(blocks(), 100000);
  std::vector<std::string> records;
  const auto log = RecordLog::Open(path_, records, options);
  ASSERT_THAT(log, IsOk());
  EXPECT_GE(blocks(), 100000);
  EXPECT_LT(std::filesystem::file_size(path_), 100u) << "readers see no more than is written";
}

TEST_F(RecordLogTest, ALogThatCannotBeMadeAnewLeavesTheOldAndNothingBeside) {
  { ASSERT_THAT(RecordLog::Create(path_, "old"), IsOk()); }
  const SmallDisk disk(100);
  ExpectError(RecordLog::Create(path_, std::string(1000, 'x'), {.disk = &disk}).status(),
              absl::StatusCode::kResourceExhausted, {path_});
  EXPECT_THAT(*Records(), ElementsAre("old"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(RecordLogTest, IsReadWithoutBeingChanged) {
  {
    const auto log = RecordLog::Create(path_, "start");
    ASSERT_THAT((*log)->Append("one"), IsOk());
  }
  Write(Contents() + "half a head");
  const auto size = std::filesystem::file_size(path_);
  EXPECT_THAT(*RecordLog::Read(path_), ElementsAre("start", "one"));
  EXPECT_EQ(std::filesystem::file_size(path_), size);
}

TEST_F(RecordLogTest, AFullDiskIsAnErrorAndTheRecordIsNotThere) {
  std::vector<std::string> records;
  const auto full = RecordLog::Open("/dev/full", records);
  EXPECT_FALSE(full.ok());
  ExpectError(RecordLog::Create("/nonexistent/log", "x").status(), absl::StatusCode::kUnavailable,
              {"/nonexistent/log"});
}

}  // namespace
}  // namespace syncgrads::server
