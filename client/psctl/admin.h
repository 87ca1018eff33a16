// The Admin service of one server, one call after the other.

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

// Every call waits until the server is there, `timeout` at most, and then fails with
// DeadlineExceeded, naming its address; other errors are the service's, as
// proto/admin.proto lists them. Thread-safe.
class Admin {
 public:
  struct Options {
    std::string server;  // host:port
    std::string job;
    std::string token;
    absl::Duration timeout = absl::Seconds(30);
  };

  explicit Admin(Options options);

  const Options& options() const { return options_; }

  absl::StatusOr<v1::GetStatusReply> GetStatus();
  absl::StatusOr<v1::ExplainReply> Explain();
  // Returns how many workers have been asked.
  absl::StatusOr<uint32_t> AskForCheckpoint();
  absl::Status Evict(const std::string& worker, const std::string& reason);

 private:
  // `method` of the stub, with this job and its deadline.
  template <typename Request, typename Reply, typename Method>
  absl::StatusOr<Reply> Call(Method method, const Request& request);

  const Options options_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_ADMIN_H_
