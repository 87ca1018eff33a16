// Sends what an optimizer keeps on this server, chunk by chunk.

#ifndef SYNCGRADS_SERVER_SERVICE_OPTIMIZER_STREAM_H_
#define SYNCGRADS_SERVER_SERVICE_OPTIMIZER_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "proto/admin.pb.h"
#include "server/core/jobs.h"

namespace syncgrads::server {

// The answer to Admin.ReadOptimizer. The round's slots are held until the stream
// ends; they are copied one chunk at a time, as the reader takes them.
grpc::ServerWriteReactor<v1::OptimizerChunk>* SendOptimizer(
    const Jobs& jobs, const v1::ReadOptimizerRequest& request);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_OPTIMIZER_STREAM_H_
