// Looking into a server, and what a person may do to its jobs.

#ifndef SYNCGRADS_SERVER_SERVICE_ADMIN_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_ADMIN_SERVICE_H_

#include "proto/admin.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/core/jobs.h"

namespace syncgrads::server {

class AdminService : public v1::Admin::CallbackService {
 public:
  // `jobs` must outlive this object, and so must `coordinator`, which is null on a
  // server that follows another.
  AdminService(const Jobs& jobs, Coordinator* coordinator, ServerIndex self)
      : jobs_(jobs), coordinator_(coordinator), self_(self) {}

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainReply* reply) override;
  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context,
                                  const v1::EvictRequest* request, v1::EvictReply* reply) override;
  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context,
                                       const v1::CheckpointRequest* request,
                                       v1::CheckpointReply* reply) override;
  grpc::ServerWriteReactor<v1::OptimizerChunk>* ReadOptimizer(
      grpc::CallbackServerContext* context, const v1::ReadOptimizerRequest* request) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusReply* reply) override;

 private:
  absl::Status NotTheCoordinator() const;

  const Jobs& jobs_;
  Coordinator* const coordinator_;
  const ServerIndex self_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_ADMIN_SERVICE_H_
