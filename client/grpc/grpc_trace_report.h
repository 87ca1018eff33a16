// Sends what a worker has recorded to the coordinator.

#ifndef SYNCGRADS_CLIENT_GRPC_GRPC_TRACE_REPORT_H_
#define SYNCGRADS_CLIENT_GRPC_GRPC_TRACE_REPORT_H_

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/link/transport.h"
#include "common/rpc/credentials.h"

namespace syncgrads::client {

// See Transport::ReportTrace. The calls have a connection of their own, so that they do not queue
// behind bulk data.
//
// Errors:
//   DeadlineExceeded  not all was sent within `timeout`
//   Cancelled         `stop` is true
//   others            those of Control.ReportTrace
absl::Status SendTraceReport(const std::string& address, const ChannelSecurity& security,
                             const TraceReport& report, absl::Duration timeout,
                             const std::atomic<bool>& stop);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_GRPC_TRACE_REPORT_H_
