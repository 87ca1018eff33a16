#include "worker/storage/s3_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/worker/storage/s3_fixture.h"
#include "tests/worker/testing/status.h"
#include "worker/storage/file_cache.h"

namespace syncgrads {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr size_t kAnySize = std::numeric_limits<size_t>::max();

// Bytes of which no two parts are alike.
std::string Bytes(size_t count) {
  std::string bytes;
  for (size_t i = 0; bytes.size() < count; ++i) bytes += std::to_string(i) + ",";
  bytes.resize(count);
  return bytes;
}

TEST_F(S3Test, AnObjectIsReadWhateverIsInItsName) {
  Put("sets/iris/iris%20%2B%20more.csv", "a,b\n1,2\n");
  S3StorageOptions options = Options();
  options.prefix = "sets/iris";
  const S3Storage storage(std::move(options));
  EXPECT_EQ(*storage.Read("iris + more.csv", kAnySize), "a,b\n1,2\n");
  EXPECT_EQ(*storage.Read("./iris + more.csv", kAnySize), "a,b\n1,2\n");
}

TEST_F(S3Test, LargeObjectsComeInParts) {
  const std::string bytes = Bytes(100'003);
  Put("large", bytes);
  S3StorageOptions options = Options();
  options.part_bytes = 10'000;
  const S3Storage storage(std::move(options));
  EXPECT_EQ(*storage.Read("large", kAnySize), bytes);
  ExpectError(storage.Read("large", 100'002), absl::StatusCode::kInvalidArgument,
              {"s3://data-sets/large", "100003", "100002"});
}

TEST_F(S3Test, DirectoriesAreWhatKeysHaveInCommon) {
  Put("data/shard0/a.csv", "x");
  Put("data/shard0/b.csv", "x");
  Put("data/shard1/a.csv", "x");
  Put("data/notes", "x");
  const S3Storage storage(Options());
  EXPECT_THAT(*storage.ListDirectories("data"), UnorderedElementsAre("shard0", "shard1"));
  EXPECT_THAT(*storage.ListDirectories("data/shard0"), IsEmpty());
  EXPECT_TRUE(*storage.IsDirectory("data"));
  EXPECT_FALSE(*storage.IsDirectory("data/notes"));
  EXPECT_FALSE(*storage.IsDirectory("dat"));
  ExpectError(storage.ListDirectories("none"), absl::StatusCode::kNotFound,
              {"s3://data-sets/none"});
}

TEST_F(S3Test, AnObjectThatIsMissingIsNamed) {
  const S3Storage storage(Options());
  ExpectError(storage.Read("none.csv", kAnySize), absl::StatusCode::kNotFound,
              {"s3://data-sets/none.csv", "NoSuchKey"});
  S3StorageOptions options = Options();
  options.s3.bucket = "no-bucket";
  ExpectError(S3Storage(std::move(options)).Read("a", kAnySize), absl::StatusCode::kNotFound,
              {"s3://no-bucket/a", "NoSuchBucket"});
}

TEST_F(S3Test, WrongCredentialsAreOneClearErrorThatDoesNotShowThem) {
  Put("a", "x");
  S3StorageOptions options = Options();
  options.s3.credentials->secret_key = "guess";
  const int before = proxy_->connections();
  const absl::Status status = S3Storage(std::move(options)).Read("a", kAnySize).status();
  ExpectError(status, absl::StatusCode::kPermissionDenied,
              {"s3://data-sets/a", "SignatureDoesNotMatch"});
  EXPECT_THAT(std::string(status.message()), ::testing::Not(::testing::HasSubstr("guess")));
  EXPECT_EQ(proxy_->connections(), before + 1);
}

TEST_F(S3Test, AStoreThatIsBusyIsAskedAgain) {
  const std::string bytes = Bytes(50'000);
  Put("a", bytes);
  proxy_->Inject({{Fault::kBusy}, {Fault::kBusy}, {Fault::kBusy}});
  const int before = proxy_->connections();
  EXPECT_EQ(*S3Storage(Options()).Read("a", kAnySize), bytes);
  EXPECT_EQ(proxy_->connections(), before + 4);
}

TEST_F(S3Test, AfterACutReadingGoesOnWhereItWas) {
  const std::string bytes = Bytes(50'000);
  Put("a", bytes);
  // The first cut is in the header of the answer, which brings nothing.
  proxy_->Inject({{Fault::kCut, 10}, {Fault::kCut, 20'000}, {Fault::kCut, 20'000}});
  const int before = proxy_->connections();
  EXPECT_EQ(*S3Storage(Options()).Read("a", kAnySize), bytes);
  // Each brought a part that was not sent again, or there would have been more.
  EXPECT_EQ(proxy_->connections(), before + 4);
}

TEST_F(S3Test, AnAnswerThatIsCutInItsHeaderIsNone) {
  const std::string bytes = Bytes(5'000);
  Put("a", bytes);
  for (size_t length = 1; length < 300; length += 13) {
    proxy_->Inject({{Fault::kCut, length}});
    EXPECT_EQ(*S3Storage(Options()).Read("a", kAnySize), bytes) << length;
  }
}

TEST_F(S3Test, AStoreThatStaysBusyIsGivenUpAndItsWordsAreShown) {
  Put("a", "x");
  proxy_->Inject(std::deque<Fault>(100, Fault{Fault::kBusy}));
  const int before = proxy_->connections();
  ExpectError(S3Storage(Options()).Read("a", kAnySize), absl::StatusCode::kUnavailable,
              {"s3://data-sets/a", "6 attempts", "HTTP 503"});
  EXPECT_EQ(proxy_->connections(), before + 6);
}

TEST_F(S3Test, WhatIsInTheCacheIsAskedForOnceAndNotTransferredAgain) {
  const std::string bytes = Bytes(20'000);
  Put("a", bytes);
  const std::string cache = directory_.path() + "/cache";
  const auto with_cache = [&] {
    S3StorageOptions options = Options();
    options.cache = *FileCache::Open(cache, 1 << 20);
    return S3Storage(std::move(options));
  };
  EXPECT_EQ(*with_cache().Read("a", kAnySize), bytes);

  // Fewer bytes than the object has pass here.
  proxy_->Inject(std::deque<Fault>(100, Fault{Fault::kCut, 5'000}));
  const S3Storage again = with_cache();
  EXPECT_EQ(*again.Read("a", kAnySize), bytes);

  proxy_->Inject({});
  Put("a", "changed");
  // Not asked for again.
  EXPECT_EQ(*again.Read("a", kAnySize), bytes);
  EXPECT_EQ(*with_cache().Read("a", kAnySize), "changed");
}

}  // namespace
}  // namespace syncgrads
