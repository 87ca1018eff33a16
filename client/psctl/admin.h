// The Admin service of one server, as blocking calls.

#ifndef SYNCGRADS_CLIENT_PSCTL_ADMIN_H_
#define SYNCGRADS_CLIENT_PSCTL_ADMIN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/admin.grpc.pb.h"

namespace syncgrads::client {

// If a call has no reply within `timeout`, it fails with DeadlineExceeded, and the message has the
// server's address. Other errors are those of the service, in proto/admin.proto. Thread-safe.
class Admin {
 public:
  struct Options {
    std::string server;  // host:port
    std::string job;
    std::string token;
    absl::Duration timeout = absl::Seconds(30);
    // Whether calls wait for the server to be reachable. If not, they fail with Unavailable as soon
    // as an attempt to connect has failed.
    bool wait_for_connection = true;
  };

  explicit Admin(Options options);

  const Options& options() const { return options_; }

  absl::StatusOr<v1::GetStatusReply> GetStatus();
  absl::StatusOr<v1::ExplainReply> Explain();
  // Returns the number of workers that have been asked.
  absl::StatusOr<uint32_t> RequestCheckpoint();
  absl::Status Evict(const std::string& worker, const std::string& reason);
  absl::Status Readmit(const std::string& worker);
  // Returns the number of jobs that are open.
  absl::StatusOr<uint32_t> Drain(const std::string& server_token);

 private:
  // Calls `method` of the stub with the deadline, and adds the server's address to an error.
  template <typename Request, typename Reply, typename Method>
  absl::StatusOr<Reply> Call(Method method, const Request& request);

  const Options options_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_ADMIN_H_
