// Streams the state of an optimizer that runs on this server, chunk by chunk.

#ifndef SYNCGRADS_SERVER_SERVICE_OPTIMIZER_STREAM_H_
#define SYNCGRADS_SERVER_SERVICE_OPTIMIZER_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "proto/admin.pb.h"
#include "server/core/jobs/jobs.h"

namespace syncgrads::server {

// Returns the reactor that answers Admin.ReadOptimizer; gRPC destroys it. It references the slots
// of the requested round, which are therefore not written again. It sends one message for each
// chunk as the reader reads, and drops the reference to a chunk's slot once the chunk is copied
// into its message.
//
// The stream ends with:
//   NotFound            there is no such job or group
//   PermissionDenied    the token is not the job's
//   FailedPrecondition  another generation; the round is not kept or not closed; or the group has
//                       no optimizer on this server
//   Cancelled           the reader has disconnected
grpc::ServerWriteReactor<v1::OptimizerChunk>* SendOptimizer(
    const Jobs& jobs, const v1::ReadOptimizerRequest& request);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_OPTIMIZER_STREAM_H_
