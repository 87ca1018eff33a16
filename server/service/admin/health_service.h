// The gRPC service that tells whether a server is healthy; see proto/health.proto.

#ifndef SYNCGRADS_SERVER_SERVICE_ADMIN_HEALTH_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_ADMIN_HEALTH_SERVICE_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/net/open_connections.h"
#include "proto/health.pb.h"
#include "server/service/calls/callback_service.h"
#include "server/service/calls/stream_deadlines.h"

namespace syncgrads::server {

// Thread-safe.
class HealthService : public CallbackService {
 public:
  // The process itself.
  static constexpr char kProcess[] = "";
  // For liveness: it does not change when the server is drained.
  static constexpr char kLive[] = "live";
  // For readiness: it reports what "/readyz" does (ReadinessOf).
  static constexpr char kReady[] = "ready";

  // `connections` and `deadlines` must outlive this object and its calls. At first, all is healthy
  // but kReady.
  HealthService(OpenConnections& connections, StreamDeadlines& deadlines);

  // `part` is one of the names above.
  void Set(const std::string& part, bool is_healthy) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status Check(const grpc::health::v1::HealthCheckRequest& request,
                     grpc::health::v1::HealthCheckResponse& reply) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  std::map<std::string, bool> is_healthy_ ABSL_GUARDED_BY(mutex_) = {
      {kProcess, true}, {kLive, true}, {kReady, false}};
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_ADMIN_HEALTH_SERVICE_H_
