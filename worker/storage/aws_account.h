// Who asks an S3-compatible store: found as Amazon's own tools find it.

#ifndef SYNCGRADS_WORKER_STORAGE_AWS_ACCOUNT_H_
#define SYNCGRADS_WORKER_STORAGE_AWS_ACCOUNT_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace syncgrads {

// Never printed.
struct AwsCredentials {
  std::string access_key;
  std::string secret_key;
  // Empty: the keys are not temporary.
  std::string session_token;
};

// Where it asks.
struct AwsRegion {
  // us-east-1 if nothing says another.
  std::string region;
  // A URL; empty: Amazon's.
  std::string endpoint;
};

using GetEnv = std::function<const char*(const char*)>;

// From AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; or, if they
// are not set or `profile` is given, from that profile (else AWS_PROFILE, else
// "default") in AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials.
//
// Errors:
//   NotFound         there are none; names where they were looked for
//   InvalidArgument  a key without its secret (their names, not what they are)
//   others           as ReadFile, if a file is there but cannot be read
absl::StatusOr<AwsCredentials> FindAwsCredentials(const std::string& profile, const GetEnv& getenv);

// From AWS_REGION, AWS_DEFAULT_REGION, or the profile in AWS_CONFIG_FILE or
// ~/.aws/config; and AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL. Errors: as ReadFile,
// if a file is there but cannot be read.
absl::StatusOr<AwsRegion> FindAwsRegion(const std::string& profile, const GetEnv& getenv);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_AWS_ACCOUNT_H_
