// Metrics of this process, under the names that all client libraries of Prometheus use.

#ifndef SYNCGRADS_COMMON_METRICS_PROCESS_METRICS_H_
#define SYNCGRADS_COMMON_METRICS_PROCESS_METRICS_H_

#include "common/metrics/metric_families.h"

namespace syncgrads {

// Adds the CPU time, memory, open file descriptors and start time of this process, and
// syncgrads_build_info. A value that /proc does not have is left out. `program` is the labels that
// describe the program, which common/rpc/build_info.h has.
void AddProcessMetrics(MetricLabels program, MetricFamilies& families);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_METRICS_PROCESS_METRICS_H_
