// The Admin service of one server, as blocking calls.

#ifndef SYNCGRADS_CLIENT_PSCTL_ADMIN_H_
#define SYNCGRADS_CLIENT_PSCTL_ADMIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/credentials.h"
#include "common/trace/clock_offset.h"
#include "proto/admin.grpc.pb.h"

namespace syncgrads::client {

// Who calls, and how connections are made.
struct Caller {
  ChannelSecurity security;
  // The token that the calls send; empty: none.
  std::string token;
};

// If a call has no reply within `timeout`, it fails with DeadlineExceeded, and the message has the
// server's address. Other errors are those of the service, in proto/admin.proto. Each text in a
// reply, and each error, is one line: control characters and line ends that the server has sent are
// escaped. Thread-safe.
class Admin {
 public:
  struct Options {
    std::string server;  // host:port
    std::string job;
    Caller caller;
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
  // Sets the job's learning rate factor, and returns the number of the epoch that has it.
  absl::StatusOr<uint64_t> SetLearningRate(double factor, const std::string& by);
  absl::Status Evict(const std::string& worker, const std::string& reason);
  absl::Status Readmit(const std::string& worker);
  // Returns the number of jobs that are open.
  absl::StatusOr<uint32_t> Drain(const std::string& server_token);
  // Reads the server's monotonic clock once.
  absl::Status ReadClock(ClockOffset& clock);
  // Passes all replies to `on_reply`, until it returns an error, which is then the result. The
  // server has `timeout` beside the `length` of the recording. Only here, texts are not escaped:
  // replies are large, and most of their texts are for a file.
  absl::Status Trace(absl::Duration length,
                     const std::function<absl::Status(v1::TraceReply)>& on_reply);
  // Returns whether there was a recording of the job, which ends now.
  absl::StatusOr<bool> StopTrace();
  // Passes all events to `on_event`. If the request follows, the call has no deadline: it ends when
  // the connection breaks, or when another thread cancels `context`.
  absl::Status Events(const v1::EventsRequest& request, grpc::ClientContext& context,
                      const std::function<void(v1::Event)>& on_event);

 private:
  // Sets the deadline, and whether the call waits for a connection.
  void Prepare(grpc::ClientContext& context, absl::Duration timeout) const;
  absl::Status WithAddress(const absl::Status& status) const;
  // Calls `method` of the stub with the deadline, and adds the server's address to an error.
  template <typename Request, typename Reply, typename Method>
  absl::StatusOr<Reply> Call(Method method, const Request& request);

  const Options options_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_ADMIN_H_
