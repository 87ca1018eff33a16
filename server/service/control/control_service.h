// The gRPC service of the control and follow planes. It connects the streams of workers (Join) and
// of other servers (Follow) to the coordinator.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_CONTROL_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_CONTROL_SERVICE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "server/access/access.h"
#include "server/core/coordinator/coordinator.h"
#include "server/service/calls/callback_service.h"
#include "server/service/calls/control_threads.h"
#include "server/service/calls/stream_deadlines.h"
#include "server/service/calls/unary_answers.h"
#include "server/service/control/serialized_signals.h"
#include "server/service/control/server_loads.h"
#include "server/service/control/stream_count.h"
#include "server/service/events/event_log.h"
#include "server/service/events/tracing.h"

namespace syncgrads::server {

// Thread-safe. gRPC calls it on any of its threads.
class ControlService : public CallbackService {
 public:
  // On a server that follows, `coordinator` is null: all streams are refused with an error that
  // has `coordinator_address`. `access` decides about each call. What servers report about their
  // load is stored in `loads`. `events` is told where the requests for jobs come from. The
  // references, and `coordinator`, must outlive this object and its streams.
  ControlService(Coordinator* coordinator, std::string coordinator_address, Access& access,
                 OpenConnections& connections, StreamDeadlines& deadlines, UnaryAnswers& answers,
                 Tracing& tracing, ServerLoads& loads, EventLog& events);

  // Waits until the streams of all members have ended or MonotonicNow() has reached `deadline`.
  void AwaitMembersGone(absl::Time deadline) { members_.AwaitNone(deadline); }

 private:
  grpc::ServerBidiReactor<Bytes, Bytes>* Join(Context* context);
  grpc::ServerBidiReactor<Bytes, Bytes>* Follow(Context* context);
  absl::Status Probe(RequestCall& call, Bytes& bytes, v1::ProbeReply& reply);
  absl::Status ReportTrace(const RequestCall& call, Bytes& bytes, v1::TraceReportReply& reply);

  Coordinator* const coordinator_;
  const std::string coordinator_address_;
  Access& access_;
  UnaryAnswers& answers_;
  Tracing& tracing_;
  ServerLoads& loads_;
  EventLog& events_;
  SerializedSignals serialized_;
  StreamCount members_;     // Join streams whose worker was admitted
  ControlThreads threads_;  // destroyed first: they use the others
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_CONTROL_SERVICE_H_
