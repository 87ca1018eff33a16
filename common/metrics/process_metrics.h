// Metrics of this process, under the names that all client libraries of Prometheus use.

#ifndef SYNCGRADS_COMMON_METRICS_PROCESS_METRICS_H_
#define SYNCGRADS_COMMON_METRICS_PROCESS_METRICS_H_

#include "common/metrics/metric_families.h"

namespace syncgrads {

// Adds the CPU time, memory, open file descriptors and start time of this process, and
// syncgrads_build_info. A value that /proc does not have is left out. `program` is a label's value,
// for example "ps-server".
void AddProcessMetrics(absl::string_view program, MetricFamilies& families);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_METRICS_PROCESS_METRICS_H_
