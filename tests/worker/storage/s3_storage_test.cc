#include "worker/storage/s3_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/testing/no_threads.h"
#include "tests/worker/storage/s3_fixture.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/storage/file_cache.h"
#include "worker/storage/http.h"

namespace syncgrads {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr size_t kAnySize = std::numeric_limits<size_t>::max();

// Makes bytes in which no two parts are equal.
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
  // The first cut is in the header of the answer, so no bytes of the object arrive.
  proxy_->Inject({{Fault::kCut, 10}, {Fault::kCut, 20'000}, {Fault::kCut, 20'000}});
  const int before = proxy_->connections();
  EXPECT_EQ(*S3Storage(Options()).Read("a", kAnySize), bytes);
  // Each of the other cut answers brought a part that was not requested again; otherwise there
  // would be more connections.
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

  // Each connection now breaks before the whole object has passed, so the object must come from the
  // cache.
  proxy_->Inject(std::deque<Fault>(100, Fault{Fault::kCut, 5'000}));
  const S3Storage again = with_cache();
  EXPECT_EQ(*again.Read("a", kAnySize), bytes);

  proxy_->Inject({});
  Put("a", "changed");
  // `again` has read the object before and does not request it again.
  EXPECT_EQ(*again.Read("a", kAnySize), bytes);
  EXPECT_EQ(*with_cache().Read("a", kAnySize), "changed");
}

TEST_F(S3Test, PartsOfAnObjectAreReadAndTheirBlocksAreKept) {
  const std::string bytes = Bytes(2'500'000);
  Put("a.tar", bytes);
  const auto expect = [&](const S3Storage& storage) {
    const std::pair<size_t, size_t> ranges[] = {
        {0, 10}, {1'000'000, 200'000}, {2'400'000, 200'000}, {2'500'000, 5}, {3, 0}};
    for (const auto& [offset, size] : ranges) {
      const auto read = storage.ReadRange("a.tar", offset, size);
      SYNCGRADS_ASSERT_OK(read);
      EXPECT_EQ(*read, bytes.substr(offset, size)) << offset;
    }
    ExpectError(storage.ReadRange("none", 0, 5), absl::StatusCode::kNotFound,
                {"s3://data-sets/none"});
  };
  expect(S3Storage(Options()));
  const auto with_cache = [&] {
    S3StorageOptions options = Options();
    options.cache = *FileCache::Open(directory_.path() + "/cache", 8 << 20);
    return S3Storage(std::move(options));
  };
  expect(with_cache());
  // Each connection now breaks before a block has passed, so blocks must come from the cache.
  proxy_->Inject(std::deque<Fault>(100, Fault{Fault::kCut, 5'000}));
  EXPECT_EQ(*with_cache().ReadRange("a.tar", 1'000'000, 200'000), bytes.substr(1'000'000, 200'000));
  proxy_->Inject({});
  Put("a.tar", "changed");
  EXPECT_EQ(*with_cache().ReadRange("a.tar", 0, 100), "changed");
}

TEST_F(S3Test, RangesOfTwoVersionsOfAnObjectAreNotMixed) {
  constexpr size_t kSize = 2'500'000;
  for (const bool has_cache : {false, true}) {
    SCOPED_TRACE(has_cache);
    const auto open = [&] {
      S3StorageOptions options = Options();
      if (has_cache) options.cache = *FileCache::Open(directory_.path() + "/cache", 8 << 20);
      return S3Storage(std::move(options));
    };
    Put("a.tar", std::string(kSize, 'a'));
    const S3Storage storage = open();
    EXPECT_EQ(*storage.ReadRange("a.tar", 0, 2), "aa");
    Put("a.tar", std::string(kSize, 'b'));
    ExpectError(storage.ReadRange("a.tar", 1'500'000, 2), absl::StatusCode::kAborted,
                {"s3://data-sets/a.tar", "has changed", "version \""});
    // The cache has blocks of the older version.
    const S3Storage later = open();
    EXPECT_EQ(*later.ReadRange("a.tar", 1'500'000, 2), "bb");
    EXPECT_EQ(*later.ReadRange("a.tar", 0, 2), "bb");
  }
}

TEST_F(S3Test, AnObjectThatDoesNotFitIntoTheCacheIsNotReadFromThereInAnOlderVersion) {
  Put("a", "old");
  S3StorageOptions options = Options();
  options.cache = *FileCache::Open(directory_.path() + "/cache", 10'000);
  const S3Storage storage(std::move(options));
  EXPECT_EQ(*storage.Read("a", kAnySize), "old");

  S3StorageOptions later = Options();
  later.cache = *FileCache::Open(directory_.path() + "/cache", 10'000);
  const S3Storage restarted(std::move(later));
  const std::string bytes = Bytes(20'000);
  Put("a", bytes);
  EXPECT_EQ(*restarted.Read("a", kAnySize), bytes);
  EXPECT_EQ(*restarted.Read("a", kAnySize), bytes) << "the cache still has the older version";
}

// A store that does not keep to the protocol.
S3StorageOptions AnsweredBy(HttpGet get) {
  S3StorageOptions options;
  options.s3.bucket = "b";
  options.s3.attempts = 2;
  options.s3.first_pause = absl::ZeroDuration();
  options.s3.get = std::move(get);
  return options;
}

TEST(HostileStoreTest, AnObjectThatNobodyHasIsNotUnchanged) {
  const TemporaryDirectory directory;
  const auto get = [](const std::string&, std::vector<std::string>, size_t) {
    HttpAnswer answer;
    answer.code = 304;
    return answer;
  };
  for (const bool cached : {false, true}) {
    S3StorageOptions options = AnsweredBy(get);
    if (cached) options.cache = *FileCache::Open(directory.path(), 1 << 20);
    const S3Storage storage(std::move(options));
    ExpectError(storage.Read("o", kAnySize), absl::StatusCode::kInternal, {"s3://b/o", "304"});
    ExpectError(storage.ReadRange("o", 0, 9), absl::StatusCode::kInternal, {"s3://b/o", "304"});
  }
}

TEST(HostileStoreTest, AnObjectIsReadWithoutFurtherThreads) {
  const std::string bytes = Bytes(100'003);
  S3StorageOptions options =
      AnsweredBy([&](const std::string&, std::vector<std::string> headers, size_t) {
        const auto range = std::find_if(headers.begin(), headers.end(), [](const auto& header) {
          return absl::StartsWithIgnoreCase(header, "range:");
        });
        size_t first = 0;
        size_t last = 0;
        EXPECT_EQ(std::sscanf(range->c_str(), "%*[^=]=%zu-%zu", &first, &last), 2);
        HttpAnswer answer;
        answer.code = 206;
        answer.body = bytes.substr(first, last - first + 1);
        answer.headers["etag"] = "\"1\"";
        answer.headers["content-range"] =
            absl::StrCat("bytes ", first, "-", first + answer.body.size() - 1, "/", bytes.size());
        return answer;
      });
  options.part_bytes = 10'000;
  const S3Storage storage(std::move(options));
  const testing::NoThreads no_threads;
  EXPECT_EQ(*storage.Read("o", kAnySize), bytes);
}

TEST(HostileStoreTest, AnObjectLargerThanTheMemoryIsRefused) {
  const S3Storage storage(AnsweredBy([](const std::string&, std::vector<std::string>, size_t max) {
    HttpAnswer answer;
    answer.code = 206;
    answer.headers["content-range"] = "bytes 0-8388607/4611686018427387904";
    answer.body = std::string(max, 'x');
    return answer;
  }));
  ExpectError(storage.Read("o", kAnySize), absl::StatusCode::kResourceExhausted,
              {"s3://b/o", "4611686018427387904"});
}

TEST(HostileStoreTest, AFewBytesInEachAttemptAreNoProgress) {
  int requests = 0;
  const S3Storage storage(AnsweredBy([&](const std::string&, std::vector<std::string>, size_t) {
    HttpAnswer answer;
    answer.transport = absl::UnavailableError("too slow");
    answer.code = 206;
    answer.headers["content-range"] = absl::StrCat("bytes ", requests++, "-8388607/8388608");
    answer.body = "x";
    return answer;
  }));
  ExpectError(storage.Read("o", kAnySize), absl::StatusCode::kUnavailable,
              {"s3://b/o: 2 attempts", "too slow"});
  EXPECT_EQ(requests, 2);
}

TEST(HostileStoreTest, AListEnds) {
  int requests = 0;
  const S3Storage storage(AnsweredBy([&](const std::string&, std::vector<std::string>, size_t) {
    ++requests;
    HttpAnswer answer;
    answer.code = 200;
    answer.body =
        "<ListBucketResult><CommonPrefixes><Prefix>d/a/</Prefix></CommonPrefixes>"
        "<NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
    return answer;
  }));
  ExpectError(storage.ListDirectories("d"), absl::StatusCode::kResourceExhausted,
              {"s3://b/d/", "1000 pages"});
  EXPECT_EQ(requests, 1000);
}

TEST(HostileStoreTest, TheNamesInAListAreLimited) {
  const std::string name(4 << 20, 'n');
  const S3Storage storage(AnsweredBy([&](const std::string&, std::vector<std::string>, size_t) {
    HttpAnswer answer;
    answer.code = 200;
    answer.body = "<ListBucketResult><CommonPrefixes><Prefix>" + name +
                  "</Prefix></CommonPrefixes>"
                  "<NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
    return answer;
  }));
  ExpectError(storage.ListDirectories("d"), absl::StatusCode::kResourceExhausted,
              {"s3://b/d/", std::to_string(64 << 20)});
}

}  // namespace
}  // namespace syncgrads
