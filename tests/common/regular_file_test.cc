#include "common/regular_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

std::string Path(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/regular_file_test.", name);
}

std::string Make(const std::string& name, const std::string& text) {
  const std::string path = Path(name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(RegularFileTest, IsReadAsAWhole) {
  const std::string text(100'000, 'x');
  const absl::StatusOr<RegularFile> file = RegularFile::Open(Make("whole", text));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->attributes().st_size, 100'000);
  const absl::StatusOr<std::string> read = file->Read(text.size());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == text);
}

TEST(RegularFileTest, AFileThatTakesItsPlaceIsNotRead) {
  const std::string path = Make("replaced", "old");
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::rename(Make("replacement", "new one"), path);
  EXPECT_EQ(file->attributes().st_size, 3);
  EXPECT_EQ(file->Read(100).value_or("an error"), "old");
}

TEST(RegularFileTest, MoreBytesThanTheMaximumAreRefused) {
  const std::string path = Make("large", "12345");
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ExpectError(file->Read(4), absl::StatusCode::kFailedPrecondition,
              {"it has 5 bytes; at most 4 are permitted"});
  // It may also grow after it was opened.
  std::ofstream(path, std::ios::app) << "6";
  ExpectError(file->Read(5), absl::StatusCode::kFailedPrecondition,
              {"it has 6 bytes; at most 5 are permitted"});
}

TEST(RegularFileTest, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  const std::string pipe = Path("pipe");
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, ::testing::TempDir(), std::string("/dev/zero")}) {
    SCOPED_TRACE(path);
    ExpectError(RegularFile::Open(path).status(), absl::StatusCode::kFailedPrecondition,
                {"it is not a regular file"});
  }
}

TEST(RegularFileTest, AFileThatIsMissingIsNotFound) {
  ExpectError(RegularFile::Open(Path("missing")).status(), absl::StatusCode::kNotFound,
              {"No such file"});
}

}  // namespace
}  // namespace syncgrads
