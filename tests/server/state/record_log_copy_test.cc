// Logs that have a copy; see record_log_test for logs without one.

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/record_log.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

// Fails writes to one file.
class HalfFullDisk : public LogDisk {
 public:
  ssize_t Write(int file, const void* data, size_t size) const override {
    if (std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", file)) == full) {
      errno = ENOSPC;
      return -1;
    }
    return LogDisk::Write(file, data, size);
  }

  std::string full;
};

class RecordLogCopyTest : public ::testing::Test {
 protected:
  RecordLogCopyTest() {
    Remove();
    const auto log = RecordLog::Create(path_, "start", options_);
    EXPECT_THAT(log, IsOk());
    for (const char* record : {"one", "", "three"}) EXPECT_THAT((*log)->Append(record), IsOk());
    EXPECT_THAT((*log)->AppendFromReserve("four"), IsOk());
  }
  ~RecordLogCopyTest() override { Remove(); }

  void Remove() const {
    std::filesystem::remove(path_);
    std::filesystem::remove(copy_);
  }
  static std::string Contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Write(const std::string& path, const std::string& contents) {
    std::ofstream(path, std::ios::binary) << contents;
  }
  // Opens the log, and expects both files to have all its records afterwards. Returns why the log
  // was replaced.
  absl::Status Open(const std::vector<std::string>& expected) const {
    std::vector<std::string> records;
    const auto log = RecordLog::Open(path_, records, options_);
    EXPECT_THAT(log, IsOk());
    if (!log.ok()) return log.status();
    EXPECT_EQ(records, expected);
    EXPECT_THAT((*log)->Append("after"), IsOk());
    for (const std::string& path : {path_, copy_}) {
      std::vector<std::string> all = expected;
      all.push_back("after");
      EXPECT_THAT(*RecordLog::Read(path), ElementsAreArray(all)) << path;
    }
    return (*log)->replaced();
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/record_log_copy_test");
  const std::string copy_ = path_ + ".copy";
  HalfFullDisk disk_;
  const RecordLogOptions options_ = {.reserve = 4096, .copied = true, .disk = &disk_};
  const std::vector<std::string> all_ = {"start", "one", "", "three", "four"};
};

TEST_F(RecordLogCopyTest, DamageOfOneFileLosesNothing) {
  const std::string whole = Contents(path_);
  ASSERT_EQ(Contents(copy_), whole);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    SCOPED_TRACE(at);
    Write(path_, damaged);
    Write(copy_, whole);
    ExpectError(Open(all_), absl::StatusCode::kDataLoss, {path_, "damaged"});
    Write(path_, whole);
    Write(copy_, damaged);
    EXPECT_THAT(Open(all_), IsOk());
  }
}

TEST_F(RecordLogCopyTest, ALogThatIsCutOrMissingIsReplaced) {
  const std::string whole = Contents(path_);
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    SCOPED_TRACE(cut);
    Write(path_, whole.substr(0, cut));
    Write(copy_, whole);
    ExpectError(Open(all_), absl::StatusCode::kDataLoss, {path_});
  }
  Write(copy_, whole);
  std::filesystem::remove(path_);
  EXPECT_EQ(Open(all_).code(), absl::StatusCode::kNotFound);
}

// A process that was killed between its two writes.
TEST_F(RecordLogCopyTest, ACopyThatLacksRecordsIsWrittenAnew) {
  const std::string whole = Contents(path_);
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    SCOPED_TRACE(cut);
    Write(path_, whole);
    Write(copy_, whole.substr(0, cut));
    EXPECT_THAT(Open(all_), IsOk());
  }
  Write(path_, whole);
  std::filesystem::remove(copy_);
  EXPECT_THAT(Open(all_), IsOk());
}

TEST_F(RecordLogCopyTest, DamageOfBothFilesIsDamage) {
  std::string damaged = Contents(path_);
  damaged.back() = '!';
  Write(path_, damaged);
  Write(copy_, damaged);
  std::vector<std::string> records;
  ExpectError(RecordLog::Open(path_, records, options_).status(), absl::StatusCode::kDataLoss,
              {absl::StrCat(path_, ": record 4"), absl::StrCat(copy_, ": record 4")});
}

TEST_F(RecordLogCopyTest, ADamagedLogIsNotGivenUpWhileItsCopyCannotBeRead) {
  const std::string elsewhere = path_ + ".elsewhere";
  std::filesystem::rename(copy_, elsewhere);
  // Links are not followed.
  std::filesystem::create_symlink(elsewhere, copy_);
  std::vector<std::string> records;
  Write(path_, "damage that is as long as a head of a record");
  EXPECT_EQ(RecordLog::Open(path_, records, options_).status().code(),
            absl::StatusCode::kUnavailable);
  std::filesystem::remove(path_);
  EXPECT_EQ(RecordLog::Open(path_, records, options_).status().code(),
            absl::StatusCode::kUnavailable);
  std::filesystem::rename(elsewhere, copy_);
  EXPECT_EQ(Open(all_).code(), absl::StatusCode::kNotFound);
}

TEST_F(RecordLogCopyTest, IsReplacedWithItsLog) {
  const auto log = RecordLog::CreateTemporary(path_ + ".new", {"new"}, options_);
  ASSERT_THAT(log, IsOk());
  ASSERT_THAT((*log)->MoveTo(path_), IsOk());
  ASSERT_THAT((*log)->Append("more"), IsOk());
  EXPECT_THAT(*RecordLog::Read(copy_), ElementsAre("new", "more"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new.copy"));
}

TEST_F(RecordLogCopyTest, ACopyThatCannotBeWrittenIsDeletedAndTheLogGoesOn) {
  std::vector<std::string> records;
  const auto log = RecordLog::Open(path_, records, options_);
  ASSERT_THAT(log, IsOk());
  disk_.full = copy_;
  ASSERT_THAT((*log)->Append("five"), IsOk());
  EXPECT_FALSE(std::filesystem::exists(copy_));
  ASSERT_THAT((*log)->Append("six"), IsOk());
  EXPECT_THAT(*RecordLog::Read(path_),
              ElementsAre("start", "one", "", "three", "four", "five", "six"));
}

TEST_F(RecordLogCopyTest, ALogWithoutACopyDeletesThatOfTheLogBefore) {
  disk_.full = path_ + ".new.copy";
  ASSERT_THAT(RecordLog::Create(path_, "new", options_), IsOk());
  EXPECT_FALSE(std::filesystem::exists(copy_));
  EXPECT_THAT(*RecordLog::Read(path_), ElementsAre("new"));
}

}  // namespace
}  // namespace syncgrads::server
