// HTTP GET requests, signed as Amazon's services require.

#ifndef SYNCGRADS_WORKER_STORAGE_HTTP_H_
#define SYNCGRADS_WORKER_STORAGE_HTTP_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "worker/storage/aws_account.h"

namespace syncgrads {

struct HttpTimeouts {
  absl::Duration connect = absl::Seconds(10);
  // A request fails if less than 1 KiB/s is received for this time.
  absl::Duration slow = absl::Seconds(30);
};

struct HttpAnswer {
  // OK: a complete response has been received, whatever its code. Unavailable: no complete
  // response has been received; what has is in the members below. InvalidArgument: the body is
  // longer than allowed. Internal: the request cannot be sent.
  absl::Status transport;
  // The HTTP status code. 0: no response has been received.
  int code = 0;
  // The keys are the names of the headers, in lower case.
  std::map<std::string, std::string> headers;
  std::string body;
};

// A function that sends requests as HttpClient::Get does.
using HttpGet = std::function<HttpAnswer(const std::string& url, std::vector<std::string> headers,
                                         size_t max_body_bytes)>;

// Sends requests, and reuses connections. Thread-safe.
class HttpClient {
 public:
  // If there are credentials, requests are signed (AWS Signature Version 4, service s3).
  HttpClient(std::optional<AwsCredentials> credentials, std::string region,
             const HttpTimeouts& timeouts);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Sends a request and waits for the response. The parameters in `url` must be sorted by name.
  // Each of `headers` has the form "name: value". The body of a response with an error code may
  // have more than `max_body_bytes`, up to 64 KiB.
  HttpAnswer Get(const std::string& url, std::vector<std::string> headers,
                 size_t max_body_bytes) const;

 private:
  // A connection with its state: an easy handle of libcurl.
  class Handle;

  std::unique_ptr<Handle> Take() const;
  void Return(std::unique_ptr<Handle> handle) const;

  const std::optional<AwsCredentials> credentials_;
  const std::string region_;
  const HttpTimeouts timeouts_;
  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<Handle>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_HTTP_H_
