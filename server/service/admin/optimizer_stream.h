// The calls of Admin.ReadOptimizer on one server: each streams the state of an optimizer that runs
// on this server, chunk by chunk.

#ifndef SYNCGRADS_SERVER_SERVICE_ADMIN_OPTIMIZER_STREAM_H_
#define SYNCGRADS_SERVER_SERVICE_ADMIN_OPTIMIZER_STREAM_H_

#include <cstddef>
#include <string>

#include "common/mutex.h"
#include "proto/admin.pb.h"
#include "server/core/jobs/jobs.h"
#include "server/service/calls/counts_by_name.h"
#include "server/service/calls/request_call.h"
#include "server/service/calls/stream_deadlines.h"

namespace syncgrads::server {

// A call references the slots of the requested round, which are therefore not written again: the
// rounds that close meanwhile need further slots. So the number of calls is limited, and a call
// whose caller does not read a message in time is cut. Thread-safe.
class OptimizerStreams {
 public:
  // The maximum number of calls at a time: in all, of one network (NetworkOf), and of one job.
  static constexpr size_t kMaxStreams = 16;
  static constexpr size_t kMaxStreamsOfNetwork = kMaxStreams / 2;
  static constexpr size_t kMaxStreamsOfJob = 2;

  // The arguments must outlive this object. `deadlines` has the time that a caller has to read each
  // message, and the end of the call.
  OptimizerStreams(const Jobs& jobs, StreamDeadlines& deadlines)
      : jobs_(jobs), deadlines_(deadlines) {}

  // Answers a call, whose caller may read the optimizer's state of the job, or refuses it. The call
  // sends one message for each chunk as the caller reads, and drops the reference to a chunk's slot
  // once the chunk is copied into its message. All calls must have ended before this object is
  // destroyed.
  //
  // The call ends with:
  //   NotFound            there is no such job or group
  //   PermissionDenied    the token is not the job's
  //   FailedPrecondition  another generation; the round is not kept or not closed; or the group has
  //                       no optimizer on this server
  //   ResourceExhausted   the job, the caller's network or this server has the maximum number of
  //                       calls
  //   DeadlineExceeded    the caller has not read a message in time
  //   Cancelled           the caller has disconnected
  void Read(RequestCall& call, const v1::ReadOptimizerRequest& request);

 private:
  class Stream;

  // Counts a call. Errors: ResourceExhausted.
  absl::Status Begin(const std::string& network, const std::string& job)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Ended(const std::string& network, const std::string& job) ABSL_LOCKS_EXCLUDED(mutex_);

  const Jobs& jobs_;
  StreamDeadlines& deadlines_;

  Mutex mutex_;
  // The number of calls: in all, of each network, and of each job.
  size_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
  CountsByName streams_of_network_ ABSL_GUARDED_BY(mutex_);
  CountsByName streams_of_job_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_ADMIN_OPTIMIZER_STREAM_H_
