// The two requests of Amazon S3's protocol that reading takes.

#ifndef SYNCGRADS_WORKER_STORAGE_S3_CLIENT_H_
#define SYNCGRADS_WORKER_STORAGE_S3_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/storage/aws_account.h"
#include "worker/storage/http.h"

namespace syncgrads {

struct S3Options {
  std::string bucket;
  // Where the bucket is, without its name: "https://HOST:PORT". Empty: Amazon's.
  std::string endpoint;
  std::string region = "us-east-1";
  // None: requests are not signed.
  std::optional<AwsCredentials> credentials;
  HttpTimeouts timeouts;
  // Requests that brought nothing, one after the other, before it is given up.
  int attempts = 6;
  // Before the second of them; then twice as long each time.
  absl::Duration first_pause = absl::Milliseconds(200);
};

// Repeats what fails in passing: a connection that breaks, an answer that the store
// is busy or in trouble (408, 429, 500, 502, 503, 504). Thread-safe.
//
// Errors of all methods, naming the object:
//   NotFound          there is no such object or bucket
//   PermissionDenied  the credentials are wrong, or may not read it
//   Aborted           it is no longer the version that was asked for
//   Unavailable       all attempts have failed; says how the last did
//   Internal          the store's answer makes no sense
class S3Client {
 public:
  explicit S3Client(S3Options options);

  // Bytes `begin` to below `end`.
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // Which version of an object is wanted.
  struct Condition {
    // Only this one; empty: any.
    std::string version;
    // Any but this one, which the caller has; empty: any.
    std::string other_than;
  };
  struct Part {
    // Fewer than the range has if the object ends in it.
    std::string bytes;
    uint64_t object_bytes = 0;
    std::string version;
    // It is the version that the caller has; nothing else is set.
    bool unchanged = false;
  };
  absl::StatusOr<Part> GetPart(const std::string& key, Range range,
                               const Condition& condition) const;

  // What lies directly below `prefix`, which is empty or ends in "/": the names of
  // directories, and whether there is anything at all.
  struct Listing {
    std::vector<std::string> directories;
    bool empty = true;
  };
  absl::StatusOr<Listing> List(const std::string& prefix) const;

  // "s3://BUCKET/KEY".
  std::string NameOf(const std::string& key) const;

 private:
  // Repeats a request. `attempt` makes it and returns whether it has brought
  // something, so that it is not given up yet.
  struct Attempt {
    HttpAnswer answer;
    bool progress = false;
  };
  absl::StatusOr<HttpAnswer> Repeat(const std::string& key,
                                    const std::function<Attempt()>& attempt) const;

  const S3Options options_;
  const std::string base_url_;
  const HttpClient http_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_S3_CLIENT_H_
