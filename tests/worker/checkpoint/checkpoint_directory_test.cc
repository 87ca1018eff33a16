#include "worker/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"

namespace {

// While it is not 0, the file system has no locks and no symbolic links: these calls fail with it.
int unsupported = 0;

// Returns -1 and sets errno if the calls fail.
int Refuse() {
  errno = unsupported;
  return unsupported == 0 ? 0 : -1;
}

}  // namespace

// These take the place of the C library's functions in this program.
extern "C" int flock(int file, int operation) noexcept {
  return Refuse() != 0 ? -1 : static_cast<int>(syscall(SYS_flock, file, operation));
}
extern "C" int symlink(const char* to, const char* path) noexcept {
  return Refuse() != 0 ? -1 : static_cast<int>(syscall(SYS_symlinkat, to, AT_FDCWD, path));
}

namespace syncgrads {
namespace {

using Steps = std::vector<uint64_t>;

class CheckpointDirectoryTest : public ::testing::Test {
 protected:
  CheckpointDirectory Open(uint32_t keep = 3, bool keep_best = false) {
    return CheckpointDirectory({directory_.path() + "/new/run", keep, keep_best});
  }

  absl::StatusOr<std::string> Write(CheckpointDirectory& checkpoints, uint64_t step,
                                    std::optional<double> score = std::nullopt, size_t bytes = 10,
                                    const std::string& best = "LOSS") {
    Manifest manifest;
    manifest.job = "job";
    manifest.step = step;
    manifest.score = score;
    manifest.best = best;
    const std::string text = absl::StrCat("state after ", step);
    const std::string long_text(bytes, 'x');
    return checkpoints.Write(manifest, {{"state", {text, long_text}}, {"empty", {}}});
  }

  // Reads the newest checkpoint that is intact. Stores the warnings about newer ones in
  // `warnings_`.
  std::optional<Checkpoint> Read(const CheckpointDirectory& checkpoints) {
    warnings_.clear();
    auto newest = checkpoints.ReadNewest([this](const absl::Status& warning) {
      warnings_.push_back(std::string(warning.message()));
    });
    SYNCGRADS_EXPECT_OK(newest);
    return newest.ok() ? *newest : std::nullopt;
  }

  // Overwrites one byte of a file of a checkpoint.
  static void Damage(const std::string& path, size_t at, char value) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(value);
  }

  // Replaces a file or a directory by a symbolic link to itself. Opening it fails, also for root.
  static void LinkToItself(const std::string& path) {
    std::filesystem::remove_all(path);
    std::filesystem::create_symlink(path, path);
  }
  // Replaces a file by a pipe that has no writer.
  static void MakePipe(const std::string& path) {
    std::filesystem::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  }

  TemporaryDirectory directory_;
  std::vector<std::string> warnings_;
};

TEST_F(CheckpointDirectoryTest, ThereIsNoneWhereThereIsNoDirectory) {
  CheckpointDirectory checkpoints = Open();
  EXPECT_FALSE(Read(checkpoints).has_value());
  EXPECT_EQ(*checkpoints.Steps(), Steps());
}

TEST_F(CheckpointDirectoryTest, WhatIsWrittenIsReadAndTheNewestCounts) {
  CheckpointDirectory checkpoints = Open();
  for (const uint64_t step : Steps({9, 10, 1000000000000}))
    SYNCGRADS_ASSERT_OK(Write(checkpoints, step));
  const auto newest = Read(checkpoints);
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->manifest.step, 1000000000000u);
  EXPECT_EQ(newest->files.at("state"), "state after 1000000000000xxxxxxxxxx");
  EXPECT_EQ(newest->files.at("empty"), "");
  EXPECT_EQ(newest->path, checkpoints.PathOf(1000000000000));
  EXPECT_TRUE(warnings_.empty());
  const auto latest = ReadCheckpoint(checkpoints.path() + "/latest");
  SYNCGRADS_ASSERT_OK(latest);
  EXPECT_EQ(latest->manifest, newest->manifest);
}

TEST_F(CheckpointDirectoryTest, TheLastOnesAreKept) {
  CheckpointDirectory checkpoints = Open(/*keep=*/2);
  for (uint64_t step = 1; step <= 5; ++step) SYNCGRADS_ASSERT_OK(Write(checkpoints, step, 0.0));
  EXPECT_EQ(*checkpoints.Steps(), Steps({4, 5}));
}

TEST_F(CheckpointDirectoryTest, AndTheBestOne) {
  CheckpointDirectory checkpoints = Open(/*keep=*/2, /*keep_best=*/true);
  const double scores[] = {-3, -1, -2, -1, -5, -6};
  for (uint64_t step = 1; step <= 6; ++step) {
    SYNCGRADS_ASSERT_OK(Write(checkpoints, step, scores[step - 1]));
  }
  // Among checkpoints with equal scores, the first is the best.
  EXPECT_EQ(*checkpoints.Steps(), Steps({2, 5, 6}));
  EXPECT_EQ(ReadCheckpoint(checkpoints.path() + "/best")->manifest.step, 2u);
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 7, 0.0));
  EXPECT_EQ(*checkpoints.Steps(), Steps({6, 7}));
  EXPECT_EQ(ReadCheckpoint(checkpoints.path() + "/best")->manifest.step, 7u);
}

TEST_F(CheckpointDirectoryTest, ScoresOfAnotherMetricAreNotCompared) {
  CheckpointDirectory checkpoints = Open(/*keep=*/1, /*keep_best=*/true);
  const auto best = [&] { return ReadCheckpoint(checkpoints.path() + "/best")->manifest.step; };
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 1, 0.9, 10, "ACCURACY"));
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 2, std::nullopt, 10, "LOSS"));
  EXPECT_EQ(best(), 1u);
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 3, -0.3, 10, "LOSS"));
  EXPECT_EQ(best(), 3u);
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 4, -0.4, 10, "LOSS"));
  EXPECT_EQ(best(), 3u);
  EXPECT_EQ(*checkpoints.Steps(), Steps({3, 4}));
}

TEST_F(CheckpointDirectoryTest, TheSameStepTakesThePlaceOfTheOneBefore) {
  CheckpointDirectory checkpoints = Open();
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 1));
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 1, std::nullopt, 20));
  EXPECT_EQ(Read(checkpoints)->files.at("state"), "state after 1" + std::string(20, 'x'));
}

TEST_F(CheckpointDirectoryTest, OfADamagedOneTheFileAndTheFaultAreNamedAndTheOneBeforeIsUsed) {
  struct Case {
    const char* name;
    std::function<void(const std::string& path)> damage;
    std::vector<std::string> named;
  };
  const Case cases[] = {
      {"a turned bit",
       [](const std::string& path) { Damage(path + "/state", 3, 'X'); },
       {"/state has checksum ", "its manifest records "}},
      {"cut",
       [](const std::string& path) { std::filesystem::resize_file(path + "/state", 5); },
       {"/state has 5 bytes, but its manifest records 23"}},
      {"lost",
       [](const std::string& path) { std::filesystem::remove(path + "/state"); },
       {"/state", "No such file"}},
      {"manifest",
       [](const std::string& path) { Damage(path + "/manifest.json", 40, '!'); },
       {"/manifest.json"}},
      {"no text",
       [](const std::string& path) { std::ofstream(path + "/manifest.json"); },
       {"/manifest.json: is not a manifest (0 bytes)"}},
      {"a long manifest",
       [](const std::string& path) {
         std::filesystem::resize_file(path + "/manifest.json", 17 << 20);
       },
       {"/manifest.json", "16777216 bytes"}},
      {"a manifest that links to itself",
       [](const std::string& path) { LinkToItself(path + "/manifest.json"); },
       {"/manifest.json", "symbolic links"}},
      {"a directory instead of the manifest",
       [](const std::string& path) {
         std::filesystem::remove(path + "/manifest.json");
         std::filesystem::create_directory(path + "/manifest.json");
       },
       {"/manifest.json is not a regular file"}},
      {"a pipe instead of the manifest",
       [](const std::string& path) { MakePipe(path + "/manifest.json"); },
       {"/manifest.json is not a regular file"}},
      {"a pipe instead of another file",
       [](const std::string& path) { MakePipe(path + "/state"); },
       {"/state is not a regular file"}},
      {"a directory that cannot be read",
       [](const std::string& path) { LinkToItself(path); },
       {"step-000000000003/manifest.json", "symbolic links"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    CheckpointDirectory checkpoints = Open();
    for (const uint64_t step : {1, 2, 3}) SYNCGRADS_ASSERT_OK(Write(checkpoints, step));
    c.damage(checkpoints.PathOf(3));
    const auto newest = Read(checkpoints);
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->manifest.step, 2u);
    ASSERT_EQ(warnings_.size(), 1u);
    for (const std::string& text : c.named) EXPECT_THAT(warnings_[0], ::testing::HasSubstr(text));
    EXPECT_NE(std::filesystem::symlink_status(checkpoints.PathOf(3) + ".damaged").type(),
              std::filesystem::file_type::not_found);
    // The damaged checkpoint does not count towards `keep`.
    CheckpointDirectory strict = Open(/*keep=*/2);
    SYNCGRADS_ASSERT_OK(Write(strict, 4));
    EXPECT_EQ(*strict.Steps(), Steps({2, 4}));
    std::filesystem::remove_all(checkpoints.path());
  }
}

TEST_F(CheckpointDirectoryTest, OneThatCannotBeRemovedIsReportedAndTheOthersAreRemoved) {
  CheckpointDirectory checkpoints = Open(/*keep=*/1);
  CheckpointDirectory keeps_all = Open(/*keep=*/3);
  for (const uint64_t step : {1, 2, 3}) SYNCGRADS_ASSERT_OK(Write(keeps_all, step));
  LinkToItself(checkpoints.PathOf(1));
  ExpectError(Write(checkpoints, 4), absl::StatusCode::kInternal, {"step-000000000001"});
  EXPECT_EQ(*checkpoints.Steps(), Steps({1, 4}));
}

TEST_F(CheckpointDirectoryTest, IfAllAreDamagedThereIsNone) {
  CheckpointDirectory checkpoints = Open();
  for (const uint64_t step : {1, 2}) {
    SYNCGRADS_ASSERT_OK(Write(checkpoints, step));
    Damage(checkpoints.PathOf(step) + "/state", 0, '!');
  }
  EXPECT_FALSE(Read(checkpoints).has_value());
  EXPECT_EQ(warnings_.size(), 2u);
}

TEST_F(CheckpointDirectoryTest, WhatIsNotFinishedIsNoneAndIsRemovedByTheNext) {
  CheckpointDirectory checkpoints = Open();
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 1));
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 2));
  std::filesystem::remove(checkpoints.PathOf(2) + "/manifest.json");
  EXPECT_EQ(Read(checkpoints)->manifest.step, 1u);
  EXPECT_TRUE(warnings_.empty());
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 3));
  EXPECT_FALSE(std::filesystem::exists(checkpoints.PathOf(2)));
}

// Simulates a full disk: a limit on the length of files makes writes fail.
TEST_F(CheckpointDirectoryTest, AFullDiskIsAnErrorAndLeavesTheOnesBefore) {
  CheckpointDirectory checkpoints = Open();
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 1));
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  {
    const absl::Cleanup restore = [&] { setrlimit(RLIMIT_FSIZE, &before); };
    const rlimit small = {32 << 10, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    ExpectError(Write(checkpoints, 2, std::nullopt, 1 << 20), absl::StatusCode::kResourceExhausted,
                {"step-000000000002/state"});
  }
  EXPECT_FALSE(std::filesystem::exists(checkpoints.PathOf(2)));
  EXPECT_EQ(Read(checkpoints)->manifest.step, 1u);
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 2, std::nullopt, 1 << 20));
  EXPECT_EQ(Read(checkpoints)->manifest.step, 2u);
}

TEST_F(CheckpointDirectoryTest, TwoWritersAreToldOfEachOther) {
  CheckpointDirectory checkpoints = Open();
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 1));
  const int file = open((checkpoints.path() + "/lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(file, LOCK_EX), 0);
  ExpectError(Write(checkpoints, 2), absl::StatusCode::kUnavailable, {checkpoints.path()});
  close(file);
  SYNCGRADS_EXPECT_OK(Write(checkpoints, 2));
}

TEST_F(CheckpointDirectoryTest, AFileSystemMayHaveNeitherLocksNorLinks) {
  const absl::Cleanup restore = [] { unsupported = 0; };
  uint64_t step = 0;
  for (const int error : {ENOSYS, EOPNOTSUPP}) {
    unsupported = error;
    CheckpointDirectory checkpoints = Open(/*keep=*/1);
    SYNCGRADS_EXPECT_OK(Write(checkpoints, ++step));
    SYNCGRADS_EXPECT_OK(Write(checkpoints, ++step));
    EXPECT_EQ(*checkpoints.Steps(), Steps({step}));
    EXPECT_FALSE(std::filesystem::exists(checkpoints.path() + "/latest"));
  }
}

TEST_F(CheckpointDirectoryTest, ALockThatCannotBeTakenIsAnErrorWithItsReason) {
  const absl::Cleanup restore = [] { unsupported = 0; };
  unsupported = EIO;
  CheckpointDirectory checkpoints = Open();
  ExpectError(Write(checkpoints, 1), absl::StatusCode::kInternal,
              {"cannot lock", checkpoints.path() + "/lock", "Input/output error"});
}

TEST_F(CheckpointDirectoryTest, ALinkThatCannotBeMadeIsReportedAndOldOnesAreRemoved) {
  CheckpointDirectory checkpoints = Open(/*keep=*/1);
  SYNCGRADS_ASSERT_OK(Write(checkpoints, 1));
  std::filesystem::remove(checkpoints.path() + "/latest");
  std::filesystem::create_directory(checkpoints.path() + "/latest");
  ExpectError(Write(checkpoints, 2), absl::StatusCode::kInternal, {"cannot link", "/latest"});
  EXPECT_EQ(*checkpoints.Steps(), Steps({2}));
}

}  // namespace
}  // namespace syncgrads
