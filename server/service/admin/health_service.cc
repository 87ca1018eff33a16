#include "server/service/admin/health_service.h"

#include "absl/strings/str_cat.h"
#include "common/names.h"

namespace syncgrads::server {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthService::HealthService(OpenConnections& connections, StreamDeadlines& deadlines)
    : CallbackService(*HealthCheckRequest::descriptor()->file()->service(0), connections,
                      deadlines) {
  ServeUnary<HealthCheckRequest, HealthCheckResponse>(
      "Check", [this](RequestCall&, const HealthCheckRequest& request, HealthCheckResponse& reply) {
        return Check(request, reply);
      });
}

void HealthService::Set(const std::string& part, bool is_healthy) {
  MutexLock lock(mutex_);
  is_healthy_[part] = is_healthy;
}

absl::Status HealthService::Check(const HealthCheckRequest& request, HealthCheckResponse& reply) {
  MutexLock lock(mutex_);
  const auto found = is_healthy_.find(request.service());
  if (found == is_healthy_.end()) {
    return absl::NotFoundError(absl::StrCat("there is no part \"", Printable(request.service()),
                                            "\" of this server; there are \"\", \"", kLive,
                                            "\" and \"", kReady, "\""));
  }
  reply.set_status(found->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
  return absl::OkStatus();
}

}  // namespace syncgrads::server
