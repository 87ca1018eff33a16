#include "server/state/record_log.h"

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

TEST_F(RecordLogTest, AFullDiskIsAnErrorAndTheRecordIsNotThere) {
  std::vector<std::string> records;
  const auto full = RecordLog::Open("/dev/full", records);
  EXPECT_FALSE(full.ok());
  ExpectError(RecordLog::Create("/nonexistent/log", "x").status(), absl::StatusCode::kUnavailable,
              {"/nonexistent/log"});
}

}  // namespace
}  // namespace syncgrads::server
