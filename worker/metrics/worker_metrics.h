// The metrics of the workers of one process. docs/monitoring.md lists them.

#ifndef SYNCGRADS_WORKER_METRICS_WORKER_METRICS_H_
#define SYNCGRADS_WORKER_METRICS_WORKER_METRICS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/http/http_server.h"
#include "common/metrics/metric_families.h"
#include "common/mutex.h"
#include "common/signals/figures.h"
#include "common/tls/tls_options.h"
#include "worker/report/progress.h"

namespace syncgrads {

// Counts what the workers of this process report. A worker that joins its job again continues its
// counters.
//
// Thread-safe.
class WorkerMetrics {
 public:
  // Returns an object that receives the progress of the worker `worker`. It must not outlive this
  // object.
  std::unique_ptr<Progress> ProgressOf(const std::string& worker);

  void AddTo(MetricFamilies& families) const;
  // True if a worker of this process trains.
  bool trains() const;

 private:
  class Recorder;
  struct Worker {
    TrainingPlan plan;
    bool trains = false;
    // The number of the last step, and the number of steps that this process has made.
    uint64_t step = 0;
    uint64_t steps = 0;
    std::optional<double> loss;
    uint64_t rows = 0;
    StepTimes times;
    double learning_rate = 0;
    uint64_t checkpoints_written = 0;
    uint64_t checkpoints_failed = 0;
  };

  mutable Mutex mutex_;
  // By name. A worker is never removed.
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mutex_);
};

// Returns the pages of ps-worker --metrics. `metrics` must outlive the server that serves them.
//
//   /metrics  metrics in the text format of Prometheus
//   /livez    200 whenever it is answered; the body is "ok"
//   /readyz   200 while a worker of this process trains, otherwise 503
HttpPages WorkerPages(const WorkerMetrics& metrics);

// Returns the security of these pages: encrypted if `tls` has a certificate. If it has a client CA
// too, "/metrics" needs a certificate with a name; probes need none.
HttpSecurity SecurityOf(const TlsOptions& tls);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_METRICS_WORKER_METRICS_H_
