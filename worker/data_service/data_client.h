// Gets rows from data servers.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_DATA_CLIENT_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_DATA_CLIENT_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/credentials.h"
#include "proto/job.pb.h"
#include "worker/data/row_source.h"

namespace syncgrads {

// Returns the servers in data.served_from of `job`, of which there must be at least one.
// `timeout` limits each wait: until a server listens and has read the data, and for each batch.
std::shared_ptr<const DataHost> ConnectToDataHosts(
    const v1::JobFile& job, const std::string& token, absl::Duration timeout,
    const ChannelSecurity& security = ChannelSecurity());

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVICE_DATA_CLIENT_H_
