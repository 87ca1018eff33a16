// The gRPC service of the admin plane: the status of a server, and operations on its jobs; see
// proto/admin.proto.

#ifndef SYNCGRADS_SERVER_SERVICE_ADMIN_ADMIN_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_ADMIN_ADMIN_SERVICE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/admin.pb.h"
#include "server/access/access.h"
#include "server/core/coordinator/coordinator.h"
#include "server/core/jobs/jobs.h"
#include "server/service/admin/event_streams.h"
#include "server/service/admin/optimizer_stream.h"
#include "server/service/admin/server_status.h"
#include "server/service/calls/callback_service.h"
#include "server/service/calls/unary_answers.h"
#include "server/service/events/tracing.h"

namespace syncgrads::server {

// Thread-safe: immutable. gRPC calls it on any of its threads.
class AdminService : public CallbackService {
 public:
  // All arguments but the last must outlive this object. `coordinator` is null on a server that
  // follows; Evict, Readmit, Checkpoint, SetLearningRate and Drain then fail with
  // FailedPrecondition. `self` is this server's index. `access` decides about each call. Drain
  // calls `drain`, on any thread.
  AdminService(const Jobs& jobs, Coordinator* coordinator, ServerIndex self,
               const StatusReport& status, Tracing& tracing, EventStreams& events,
               OptimizerStreams& optimizers, UnaryAnswers& answers, Access& access,
               OpenConnections& connections, StreamDeadlines& deadlines,
               std::function<void()> drain);

 private:
  absl::Status Explain(RequestCall& call, const v1::ExplainRequest& request,
                       v1::ExplainReply& reply);
  absl::Status Evict(RequestCall& call, const v1::EvictRequest& request, v1::EvictReply& reply);
  absl::Status Readmit(RequestCall& call, const v1::ReadmitRequest& request,
                       v1::ReadmitReply& reply);
  absl::Status Checkpoint(RequestCall& call, const v1::CheckpointRequest& request,
                          v1::CheckpointReply& reply);
  absl::Status SetLearningRate(RequestCall& call, const v1::SetLearningRateRequest& request,
                               v1::SetLearningRateReply& reply);
  void ReadOptimizer(RequestCall& call, const v1::ReadOptimizerRequest& request);
  absl::Status GetStatus(RequestCall& call, const v1::GetStatusRequest& request,
                         v1::GetStatusReply& reply);
  absl::Status Drain(RequestCall& call, const v1::DrainRequest& request, v1::DrainReply& reply);
  void Trace(RequestCall& call, const v1::TraceRequest& request);
  absl::Status StopTrace(RequestCall& call, const v1::StopTraceRequest& request,
                         v1::StopTraceReply& reply);
  void Events(RequestCall& call, const v1::EventsRequest& request);
  absl::Status ReadClock(RequestCall& call, const v1::ReadClockRequest& request,
                         v1::ReadClockReply& reply);

  // Serve a method of this name.
  template <typename Request, typename Reply>
  void Unary(absl::string_view name,
             absl::Status (AdminService::*method)(RequestCall&, const Request&, Reply&));
  template <typename Request>
  void Stream(absl::string_view name, void (AdminService::*method)(RequestCall&, const Request&));

  // Returns what `answer` returns if the caller may do this to the job; otherwise the reason why
  // not, or InvalidArgument if no job can have this name. `answer` compares the token that it is
  // given with the job's: the one of the request, or none if rules have decided.
  absl::Status Guarded(const RequestCall& call, Action action, const std::string& job,
                       const std::string& token,
                       const std::function<absl::Status(const std::string& token)>& answer);
  // Does the same on the coordinator. Returns FailedPrecondition on another server.
  absl::Status OnCoordinator(const RequestCall& call, Action action, const std::string& job,
                             const std::string& token,
                             const std::function<absl::Status(const std::string& token)>& answer);

  const Jobs& jobs_;
  Coordinator* const coordinator_;
  const ServerIndex self_;
  const StatusReport& status_;
  Tracing& tracing_;
  EventStreams& events_;
  OptimizerStreams& optimizers_;
  UnaryAnswers& answers_;
  Access& access_;
  const std::function<void()> drain_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_ADMIN_ADMIN_SERVICE_H_
