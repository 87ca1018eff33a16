// Finds the S3 credentials and region where Amazon's own tools find them.

#ifndef SYNCGRADS_WORKER_STORAGE_AWS_ACCOUNT_H_
#define SYNCGRADS_WORKER_STORAGE_AWS_ACCOUNT_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace syncgrads {

// Credentials for requests to S3. Must never be logged.
struct AwsCredentials {
  std::string access_key;
  std::string secret_key;
  // Empty if the keys are not temporary.
  std::string session_token;
};

// The region and endpoint that requests are sent to.
struct AwsRegion {
  // us-east-1 if none is configured.
  std::string region;
  // A URL. Empty: Amazon's endpoint.
  std::string endpoint;
};

using GetEnv = std::function<const char*(const char*)>;

// Finds the credentials in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. If
// these are not set, or `profile` is given, finds them in AWS_SHARED_CREDENTIALS_FILE or
// ~/.aws/credentials: in the profile `profile`, else AWS_PROFILE, else "default".
//
// Errors:
//   NotFound         there are no credentials; names the places that were searched
//   InvalidArgument  a key without its secret, or a secret without its key; names which, but not
//                    their values
//   others           those of ReadFile, if a file exists but cannot be read
absl::StatusOr<AwsCredentials> FindAwsCredentials(const std::string& profile, const GetEnv& getenv);

// Finds the region in AWS_REGION, AWS_DEFAULT_REGION, or the profile in AWS_CONFIG_FILE or
// ~/.aws/config; and the endpoint in AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL. Errors: those of
// ReadFile, if a file exists but cannot be read.
absl::StatusOr<AwsRegion> FindAwsRegion(const std::string& profile, const GetEnv& getenv);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_AWS_ACCOUNT_H_
