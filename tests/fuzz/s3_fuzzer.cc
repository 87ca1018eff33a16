// Reads an object, a range and a list from a store whose answers are arbitrary: codes, headers,
// bodies and broken connections. The first byte of an input chooses the request.

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker/storage/http.h"
#include "worker/storage/s3_storage.h"

namespace syncgrads::fuzz {
namespace {

constexpr size_t kPartBytes = 64;
constexpr size_t kMaxBytes = 4096;
constexpr int kCodes[] = {200, 206, 206, 206, 304, 403, 404, 408, 412, 416, 500, 0};
constexpr int kFirstErrorCode = 400;

// The answers of a store, one after the other. After the last one, no connection can be made.
// Thread-safe, because a large object is read by several threads.
class Store {
 public:
  explicit Store(Choices choices) : choices_(choices) {}

  HttpAnswer Answer(size_t max_body_bytes) {
    MutexLock lock(mutex_);
    HttpAnswer answer;
    if (choices_.empty()) {
      answer.transport = absl::UnavailableError("no connection");
      return answer;
    }
    const uint8_t kind = choices_.Byte();
    answer.code = kCodes[kind % std::size(kCodes)];
    answer.headers["etag"] = std::string(choices_.Take(choices_.Byte() % 8));
    answer.headers["content-range"] = std::string(choices_.Take(choices_.Byte() % 64));
    answer.body = std::string(choices_.Take(choices_.Number(2)));
    if (kind & 0x80) answer.transport = absl::UnavailableError("the connection is broken");
    // As HttpClient does.
    const size_t allowed = answer.code >= kFirstErrorCode ? size_t{64} << 10 : max_body_bytes;
    if (answer.body.size() > allowed) {
      answer.body.resize(allowed);
      answer.transport = absl::InvalidArgumentError("the body is too long");
    }
    return answer;
  }

 private:
  Mutex mutex_;
  Choices choices_ ABSL_GUARDED_BY(mutex_);
};

std::string Answer(int kind, absl::string_view etag, absl::string_view range,
                   absl::string_view body) {
  return absl::StrCat(Encoded(kind, 1), Encoded(etag.size(), 1), etag, Encoded(range.size(), 1),
                      range, Encoded(body.size(), 2), body);
}

}  // namespace

void Fuzz(absl::string_view input) {
  Choices choices(input);
  const uint8_t request = choices.Byte();
  Store store(choices);
  S3StorageOptions options;
  options.part_bytes = kPartBytes;
  options.s3.bucket = "b";
  options.s3.attempts = 2;
  options.s3.first_pause = absl::ZeroDuration();
  options.s3.get = [&store](const std::string&, std::vector<std::string>, size_t max_body_bytes) {
    return store.Answer(max_body_bytes);
  };
  const S3Storage storage(std::move(options));
  switch (request % 4) {
    case 0: {
      const absl::StatusOr<std::string> object = storage.Read("o", kMaxBytes);
      RequireExplained(object.status());
      Require(!object.ok() || object->size() <= kMaxBytes, "an object is no larger than allowed");
      return;
    }
    case 1: {
      const uint64_t offset = request / 4;
      const absl::StatusOr<std::string> range = storage.ReadRange("o", offset, kPartBytes);
      RequireExplained(range.status());
      Require(!range.ok() || range->size() <= kPartBytes, "a range is no larger than requested");
      return;
    }
    case 2:
      return RequireExplained(storage.IsDirectory("d").status());
    default:
      return RequireExplained(storage.ListDirectories("d").status());
  }
}

std::vector<std::string> Seeds() {
  const std::string page =
      "<ListBucketResult><Contents><Key>d/x</Key></Contents>"
      "<CommonPrefixes><Prefix>d/a/</Prefix></CommonPrefixes>";
  const std::string list =
      Answer(0, "", "",
             page + "<NextContinuationToken>t</NextContinuationToken></ListBucketResult>") +
      Answer(0, "", "", page + "</ListBucketResult>");
  const std::string full(kPartBytes, 'x');
  return {
      // An object of one part, one of three, and one whose connection breaks.
      Encoded(0, 1) + Answer(1, "\"v\"", "bytes 0-3/4", "abcd"),
      Encoded(0, 1) + Answer(1, "\"v\"", "bytes 0-63/130", full) +
          Answer(1, "\"v\"", "bytes 64-127/130", full) +
          Answer(1, "\"v\"", "bytes 128-129/130", "yz"),
      Encoded(0, 1) + Answer(0x81, "\"v\"", "bytes 0-1/4", "ab") +
          Answer(1, "\"v\"", "bytes 2-3/4", "cd"),
      Encoded(0, 1) + Answer(0, "\"v\"", "", "whole"),
      // Answers to a request without a condition.
      Encoded(0, 1) + Answer(4, "\"v\"", "", ""),
      Encoded(1, 1) + Answer(4, "\"v\"", "", ""),
      Encoded(1 + 4 * 9, 1) + Answer(1, "\"v\"", "bytes 9-12/13", "abcd"),
      Encoded(1, 1) + Answer(9, "", "bytes */13", ""),
      Encoded(2, 1) + list,
      Encoded(3, 1) + list,
      Encoded(3, 1) + Answer(6, "", "", "<Error><Code>NoSuchBucket</Code></Error>"),
      Encoded(3, 1) + Answer(10, "", "", "busy") + list,
  };
}

}  // namespace syncgrads::fuzz
