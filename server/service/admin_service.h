// Looking into a server.

#ifndef SYNCGRADS_SERVER_SERVICE_ADMIN_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_ADMIN_SERVICE_H_

#include "proto/admin.grpc.pb.h"
#include "server/core/jobs.h"

namespace syncgrads::server {

class AdminService : public v1::Admin::CallbackService {
 public:
  // `jobs` must outlive this object.
  AdminService(const Jobs& jobs, ServerIndex self) : jobs_(jobs), self_(self) {}

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainReply* reply) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusReply* reply) override;

 private:
  const Jobs& jobs_;
  const ServerIndex self_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_ADMIN_SERVICE_H_
