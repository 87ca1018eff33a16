// The gRPC service of the control and follow planes. It connects the streams of workers (Join) and
// of other servers (Follow) to the coordinator.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_SERVICE_H_

#include <string>

#include "absl/time/time.h"
#include "proto/control.grpc.pb.h"
#include "server/access/access.h"
#include "server/core/coordinator/coordinator.h"
#include "server/service/control_threads.h"
#include "server/service/event_log.h"
#include "server/service/serialized_signals.h"
#include "server/service/server_loads.h"
#include "server/service/stream_count.h"
#include "server/service/stream_deadlines.h"
#include "server/service/tracing.h"
#include "server/service/unary_answers.h"

namespace syncgrads::server {

// Thread-safe. gRPC calls it on any of its threads.
class ControlService
    : public v1::Control::WithRawCallbackMethod_Join<
          v1::Control::WithRawCallbackMethod_Follow<v1::Control::WithCallbackMethod_Probe<
              v1::Control::WithCallbackMethod_ReportTrace<v1::Control::Service>>>> {
 public:
  // On a server that follows, `coordinator` is null: all streams are refused with an error that
  // has `coordinator_address`. `access` decides about each call. What servers report about their
  // load is stored in `loads`. `events` is told where the requests for jobs come from. The
  // references, and `coordinator`, must outlive this object and its streams.
  ControlService(Coordinator* coordinator, std::string coordinator_address, Access& access,
                 StreamDeadlines& deadlines, UnaryAnswers& answers, Tracing& tracing,
                 ServerLoads& loads, EventLog& events);

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Join(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Follow(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Probe(grpc::CallbackServerContext* context,
                                  const v1::ProbeRequest* request, v1::ProbeReply* reply) override;
  grpc::ServerUnaryReactor* ReportTrace(grpc::CallbackServerContext* context,
                                        const v1::TraceReport* request,
                                        v1::TraceReportReply* reply) override;

  // Waits until the streams of all members have ended or MonotonicNow() has reached `deadline`.
  void AwaitMembersGone(absl::Time deadline) { members_.AwaitNone(deadline); }

 private:
  Coordinator* const coordinator_;
  const std::string coordinator_address_;
  Access& access_;
  StreamDeadlines& deadlines_;
  UnaryAnswers& answers_;
  Tracing& tracing_;
  ServerLoads& loads_;
  EventLog& events_;
  SerializedSignals serialized_;
  StreamCount members_;     // Join streams whose worker was admitted
  ControlThreads threads_;  // destroyed first: they use the others
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_SERVICE_H_
