#include "worker/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "common/file_descriptor.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"

namespace syncgrads {
namespace {

TEST(FileTest, WhatIsWrittenIsRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  SYNCGRADS_ASSERT_OK(WriteFileAtomically(path, {"old and long"}));
  SYNCGRADS_ASSERT_OK(WriteFileAtomically(path, {"one, ", "two"}));
  const auto contents = ReadFile(path, 100);
  SYNCGRADS_ASSERT_OK(contents);
  EXPECT_EQ(*contents, "one, two");
}

TEST(FileTest, WritingLeavesNothingElseBehind) {
  const TemporaryDirectory directory;
  SYNCGRADS_ASSERT_OK(WriteFileAtomically(directory.path() + "/file", {"text"}));
  // A directory cannot be replaced by a file.
  std::filesystem::create_directory(directory.path() + "/taken");
  EXPECT_FALSE(WriteFileAtomically(directory.path() + "/taken", {"text"}).ok());
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    ++entries;
  }
  EXPECT_EQ(entries, 2);
}

TEST(FileTest, FilesHaveThePermissionsThatTheUmaskAllows) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  for (const mode_t mask : {0077, 0022, 0002}) {
    const mode_t before = umask(mask);
    const absl::Status written = WriteFileAtomically(path, {"text"});
    umask(before);
    SYNCGRADS_ASSERT_OK(written);
    EXPECT_EQ(static_cast<mode_t>(std::filesystem::status(path).permissions()), 0666 & ~mask);
  }
}

TEST(FileTest, ErrorsNameThePath) {
  const TemporaryDirectory directory;
  ExpectError(ReadFile(directory.path() + "/none", 10), absl::StatusCode::kNotFound, {"/none"});
  ExpectError(ReadFile(directory.path(), 10), absl::StatusCode::kInvalidArgument,
              {directory.path()});
  ExpectError(WriteFileAtomically(directory.path() + "/none/file", {"text"}),
              absl::StatusCode::kNotFound, {"/none/file"});
}

TEST(FileTest, AFileThatIsTooLongIsRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory.Write("file", "12345");
  SYNCGRADS_EXPECT_OK(ReadFile(path, 5));
  ExpectError(ReadFile(path, 4), absl::StatusCode::kInvalidArgument, {path, "4 bytes"});
}

TEST(FileTest, ARegularFileIsReadAndAnythingElseIsRefusedWithoutAWait) {
  const TemporaryDirectory directory;
  const std::string path = directory.Write("file", "12345");
  EXPECT_EQ(*ReadRegularFile(path, 5), "12345");
  ExpectError(ReadRegularFile(path, 4), absl::StatusCode::kInvalidArgument, {path, "4 bytes"});
  ExpectError(ReadRegularFile(directory.path() + "/none", 10), absl::StatusCode::kNotFound,
              {"/none"});
  const std::string pipe = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& other : {pipe, directory.path()}) {
    ExpectError(ReadRegularFile(other, 10), absl::StatusCode::kInvalidArgument,
                {other, "is not a regular file"});
  }
}

TEST(FileTest, APipeIsReadUntilItIsClosed) {
  const TemporaryDirectory directory;
  const std::string pipe = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&pipe] {
    const FileDescriptor end(open(pipe.c_str(), O_WRONLY));
    for (const char* piece : {"12", "345"})
      EXPECT_GT(write(end.get(), piece, std::strlen(piece)), 0);
  });
  const absl::StatusOr<std::string> contents = ReadFile(pipe, 5);
  writer.join();
  EXPECT_EQ(contents.value_or("nothing"), "12345");
}

TEST(FileTest, APipeWithoutAWriterIsNotAwaitedForEver) {
  const TemporaryDirectory directory;
  const std::string pipe = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectError(ReadFile(pipe, 5, /*pipe_timeout=*/absl::Milliseconds(1)),
              absl::StatusCode::kDeadlineExceeded, {pipe, "1ms"});
  // The same if there is a writer, which writes nothing.
  const FileDescriptor silent(open(pipe.c_str(), O_RDWR));
  ExpectError(ReadFile(pipe, 5, /*pipe_timeout=*/absl::Milliseconds(1)),
              absl::StatusCode::kDeadlineExceeded, {pipe, "1ms"});
}

TEST(FileTest, RelativePathsAreTakenFromTheDirectory) {
  EXPECT_EQ(PathFrom("/jobs", "a.csv"), "/jobs/a.csv");
  EXPECT_EQ(PathFrom("/jobs", "/data/a.csv"), "/data/a.csv");
  EXPECT_EQ(DirectoryOf("/jobs/iris.job"), "/jobs");
  EXPECT_EQ(DirectoryOf("iris.job"), ".");
  EXPECT_EQ(DirectoryOf("/iris.job"), "/");
}

}  // namespace
}  // namespace syncgrads
