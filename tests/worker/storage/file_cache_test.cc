#include "worker/storage/file_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"

namespace syncgrads {
namespace {

namespace fs = std::filesystem;

TEST(FileCacheTest, WhatIsKeptIsFoundInLaterRunsToo) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/new/cache";
  (*FileCache::Open(path, 1000))->Keep("key", "version 1", "contents");
  const auto cache = FileCache::Open(path, 1000);
  SYNCGRADS_ASSERT_OK(cache);
  const auto found = (*cache)->Find("key");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->version, "version 1");
  EXPECT_EQ(found->contents, "contents");
  EXPECT_FALSE((*cache)->Find("other").has_value());
  (*cache)->Keep("key", "version 2", "new contents");
  EXPECT_EQ((*cache)->Find("key")->contents, "new contents");
}

TEST(FileCacheTest, ADamagedFileCountsAsLost) {
  TemporaryDirectory directory;
  const auto cache = *FileCache::Open(directory.path(), 1000);
  cache->Keep("key", "version", "contents");
  for (const auto& file : fs::directory_iterator(directory.path())) {
    std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-1, std::ios::end);
    stream.put('!');
  }
  EXPECT_FALSE(cache->Find("key").has_value());
  for (const auto& file : fs::directory_iterator(directory.path())) fs::resize_file(file, 7);
  EXPECT_FALSE(cache->Find("key").has_value());
}

TEST(FileCacheTest, WhatHasNotBeenUsedForLongestGoesFirst) {
  TemporaryDirectory directory;
  const auto cache = *FileCache::Open(directory.path(), 10'000);
  for (const char* key : {"a", "b", "c"}) {
    cache->Keep(key, "1", std::string(3'000, *key));
    // The resolution of file times may be coarse, so the files get times that differ.
    for (const auto& file : fs::directory_iterator(directory.path())) {
      fs::last_write_time(file, fs::last_write_time(file) - std::chrono::seconds(1));
    }
  }
  EXPECT_TRUE(cache->Find("a").has_value());
  cache->Keep("d", "1", std::string(3'000, 'd'));
  EXPECT_TRUE(cache->Find("a").has_value());
  EXPECT_FALSE(cache->Find("b").has_value());
  EXPECT_TRUE(cache->Find("d").has_value());
  cache->Keep("e", "1", std::string(10'001, 'e'));
  EXPECT_FALSE(cache->Find("e").has_value());
}

TEST(FileCacheTest, UnfinishedFilesOfKilledWritersAreRemoved) {
  TemporaryDirectory directory;
  const std::string unfinished = directory.Write("0123456789abcdef.cached.1f", "half");
  const std::string under_way = directory.Write("0123456789abcdef.cached.2f", "half");
  const std::string other = directory.Write("notes", "");
  for (const std::string& file : {unfinished, other}) {
    fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(2));
  }
  SYNCGRADS_ASSERT_OK(FileCache::Open(directory.path(), 1000));
  EXPECT_FALSE(fs::exists(unfinished));
  EXPECT_TRUE(fs::exists(under_way));
  EXPECT_TRUE(fs::exists(other));
}

TEST(FileCacheTest, ADirectoryThatCannotBeMadeIsNamed) {
  TemporaryDirectory directory;
  const std::string file = directory.Write("file", "");
  ExpectError(FileCache::Open(file + "/cache", 1), absl::StatusCode::kInternal, {file + "/cache"});
}

}  // namespace
}  // namespace syncgrads
