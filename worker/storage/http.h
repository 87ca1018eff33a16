// One HTTP request, signed as Amazon's services want it.

#ifndef SYNCGRADS_WORKER_STORAGE_HTTP_H_
#define SYNCGRADS_WORKER_STORAGE_HTTP_H_

#include <cstddef>
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
  // Without a byte.
  absl::Duration silence = absl::Seconds(30);
};

struct HttpAnswer {
  // OK: an answer has come whole, whatever its code. Unavailable: it has not; what
  // has come of it is below. InvalidArgument: it was longer than wanted. Internal:
  // the request cannot be made.
  absl::Status transport;
  // 0: none has come.
  int code = 0;
  // Names in small letters.
  std::map<std::string, std::string> headers;
  std::string body;
};

// Connections are kept and used again. Thread-safe.
class HttpClient {
 public:
  // Requests are signed (AWS Signature Version 4, service s3) if there are
  // credentials.
  HttpClient(std::optional<AwsCredentials> credentials, std::string region,
             const HttpTimeouts& timeouts);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // `url` has its parameters sorted by name. `headers`: "name: value".
  HttpAnswer Get(const std::string& url, std::vector<std::string> headers,
                 size_t max_body_bytes) const;

 private:
  // A connection and what belongs to it: libcurl's easy handle.
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
