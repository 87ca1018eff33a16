// The two requests of Amazon S3's protocol that are needed to read: get a part, list a
// directory.

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
  // The URL of the store without the bucket's name: "https://HOST:PORT". Empty: Amazon's.
  std::string endpoint;
  std::string region = "us-east-1";
  // nullopt: requests are not signed.
  std::optional<AwsCredentials> credentials;
  HttpTimeouts timeouts;
  // Sends the requests; called on any thread. Null: an HttpClient.
  HttpGet get;
  // A request fails after this many consecutive attempts that each receive less than 32 KiB.
  int attempts = 6;
  // The backoff before the second attempt. It doubles with each further attempt.
  absl::Duration first_pause = absl::Milliseconds(200);
};

// Sends requests to one bucket. Retries transient errors, with backoff: a broken connection, or
// one of the responses 408, 429, 500, 502, 503 and 504. Thread-safe.
//
// Errors of all methods, which name the object:
//   NotFound          there is no such object or bucket
//   PermissionDenied  the credentials are wrong, or do not allow reading the object
//   Aborted           the object no longer has the requested version
//   Unavailable       all attempts failed; describes the last failure
//   InvalidArgument   the response is longer than requested
//   Internal          the request cannot be sent, or the response is malformed or is not an answer
//                     to the request
class S3Client {
 public:
  explicit S3Client(S3Options options);

  // Bytes `begin` to below `end`.
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // The version of an object that is requested.
  struct Condition {
    // Only this version. Empty: any.
    std::string version;
    // Any version but this one, which the caller has. Empty: any.
    std::string other_than;
  };
  struct Part {
    // Fewer bytes than the range, if the object ends within it.
    std::string bytes;
    // If the object ends before the range, this is the beginning of the range with some stores.
    uint64_t object_bytes = 0;
    std::string version;
    // True if the object still has the version that the caller has. No other member is set then.
    bool unchanged = false;
  };
  // Gets a range of bytes. If the connection breaks, the next attempt continues where it broke.
  absl::StatusOr<Part> GetPart(const std::string& key, Range range,
                               const Condition& condition) const;

  // The objects and directories directly below `prefix`, which is empty or ends in "/": the
  // names of the directories, and whether there is nothing below it at all.
  struct Listing {
    std::vector<std::string> directories;
    bool empty = true;
  };
  //
  // Errors, beside those above:
  //   ResourceExhausted  the list has more than a million names, or the directories' names have
  //                      more than 64 MiB
  absl::StatusOr<Listing> List(const std::string& prefix) const;

  // Returns "s3://BUCKET/KEY".
  std::string NameOf(const std::string& key) const;

 private:
  // Retries a request. `attempt` sends it and returns the response. `progress` is true if the
  // attempt has received at least 32 KiB of data; the attempts are then counted from 0 again.
  struct Attempt {
    HttpAnswer answer;
    bool progress = false;
  };
  absl::StatusOr<HttpAnswer> Repeat(const std::string& key,
                                    const std::function<Attempt()>& attempt) const;

  const S3Options options_;
  const std::string base_url_;
  const HttpGet get_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_S3_CLIENT_H_
