// A server's status as metrics, and as the answer to a readiness probe. docs/monitoring.md lists
// the metrics.

#ifndef SYNCGRADS_SERVER_METRICS_SERVER_METRICS_H_
#define SYNCGRADS_SERVER_METRICS_SERVER_METRICS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics/metric_families.h"
#include "proto/admin.pb.h"

namespace syncgrads::server {

// Each name of a collective is a group, so a job can have a thousand. Metrics are given for this
// number of groups of a job: those with the most rounds.
inline constexpr size_t kMostGroupsInMetrics = 16;

// Adds the metrics of `status`. Members are labelled with their names. Contributions of members
// that are not in the job's newest epoch are left out, except in the counts of those that were not
// finite.
void AddServerMetrics(const v1::GetStatusReply& status, MetricFamilies& families);

// A server that has not looked after its jobs for so long is not ready.
inline constexpr absl::Duration kMostIdle = absl::Seconds(10);

// Returns whether the server can serve jobs. It does not depend on the state of any job: it reads
// the server's index, `server.draining`, `server.coordinator_reached` and `server.idle_ms`.
//
// Errors:
//   Unavailable  the server has no connection to the coordinator, it refuses new jobs because it is
//                about to stop, or it has not looked after its jobs for kMostIdle
absl::Status ReadinessOf(const v1::GetStatusReply& status);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_METRICS_SERVER_METRICS_H_
