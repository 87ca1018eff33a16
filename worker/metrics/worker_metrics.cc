#include "worker/metrics/worker_metrics.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/time/time.h"
#include "common/metrics/process_metrics.h"
#include "common/rpc/build_info.h"

namespace syncgrads {

class WorkerMetrics::Recorder : public Progress {
 public:
  Recorder(WorkerMetrics& metrics, std::string worker)
      : metrics_(metrics), worker_(std::move(worker)) {}
  ~Recorder() override {
    Change([](Worker& worker) { worker.trains = false; });
  }

  void Started(const TrainingPlan& plan) override {
    Change([&](Worker& worker) {
      worker.plan = plan;
      worker.trains = true;
    });
  }
  void Used(const StepUse& use) override {
    Change([&](Worker& worker) {
      worker.rows += use.rows;
      worker.times += use.times;
      worker.learning_rate = use.learning_rate;
    });
  }
  void Stepped(uint64_t step, std::optional<double> loss) override {
    Change([&](Worker& worker) {
      worker.step = step;
      ++worker.steps;
      if (loss.has_value()) worker.loss = loss;
    });
  }
  void Checkpointed(bool written) override {
    Change([&](Worker& worker) {
      ++(written ? worker.checkpoints_written : worker.checkpoints_failed);
    });
  }
  void Finished() override {
    Change([](Worker& worker) { worker.trains = false; });
  }

 private:
  template <typename F>
  void Change(const F& change) {
    MutexLock lock(metrics_.mutex_);
    change(metrics_.workers_[worker_]);
  }

  WorkerMetrics& metrics_;
  const std::string worker_;
};

std::unique_ptr<Progress> WorkerMetrics::ProgressOf(const std::string& worker) {
  return std::make_unique<Recorder>(*this, worker);
}

bool WorkerMetrics::trains() const {
  MutexLock lock(mutex_);
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker.second.trains; });
}

void WorkerMetrics::AddTo(MetricFamilies& families) const {
  MutexLock lock(mutex_);
  for (const auto& [name, worker] : workers_) {
    const TrainingPlan& plan = worker.plan;
    const MetricLabels labels = {{"training_job", plan.job}, {"worker", name}};
    families.Counter("syncgrads_worker_steps_total", "Steps that this process has made.", labels,
                     static_cast<double>(worker.steps));
    families.Gauge("syncgrads_worker_step", "Number of the last step, from 1.", labels,
                   static_cast<double>(worker.step));
    families.Gauge("syncgrads_worker_planned_steps", "Number of steps in the plan.", labels,
                   static_cast<double>(plan.steps));
    if (plan.training_rows > 0) {
      const double rows_of_step = static_cast<double>(plan.batch_size) * plan.workers;
      families.Gauge("syncgrads_worker_data_passes",
                     "Passes over the training data so far, of all workers together; an estimate "
                     "if batches have different sizes.",
                     labels,
                     static_cast<double>(worker.step) * rows_of_step /
                         static_cast<double>(plan.training_rows));
    }
    families.Counter("syncgrads_worker_samples_total", "Rows that this worker has contributed.",
                     labels, static_cast<double>(worker.rows));
    if (worker.loss.has_value()) {
      families.Gauge("syncgrads_worker_loss", "Loss of this worker's last batch.", labels,
                     *worker.loss);
    }
    if (worker.steps > 0) {
      families.Gauge("syncgrads_worker_learning_rate", "Learning rate of the last step.", labels,
                     worker.learning_rate);
    }
    for (const auto& [metric, help, time] :
         {std::tuple("syncgrads_worker_data_wait_seconds_total",
                     "Time that the worker's steps have waited for batches to be read.",
                     worker.times.read),
          std::tuple("syncgrads_worker_compute_seconds_total",
                     "Time that the worker has computed gradients.", worker.times.compute),
          std::tuple("syncgrads_worker_push_seconds_total",
                     "Time that the worker has passed gradients to the client library.",
                     worker.times.push),
          std::tuple("syncgrads_worker_results_wait_seconds_total",
                     "Time that the worker's steps have waited for results from the servers.",
                     worker.times.wait),
          std::tuple("syncgrads_worker_apply_seconds_total",
                     "Time that the worker has updated parameters with results.",
                     worker.times.apply)}) {
      families.Counter(metric, help, labels, absl::ToDoubleSeconds(time));
    }
    for (const bool written : {true, false}) {
      MetricLabels of_result = labels;
      of_result.emplace_back("result", written ? "written" : "failed");
      families.Counter(
          "syncgrads_worker_checkpoints_total", "Checkpoints of this worker, by their result.",
          of_result,
          static_cast<double>(written ? worker.checkpoints_written : worker.checkpoints_failed));
    }
  }
}

HttpPages WorkerPages(const WorkerMetrics& metrics) {
  HttpPages pages;
  pages["/metrics"] = [&metrics] {
    MetricFamilies families;
    metrics.AddTo(families);
    AddProcessMetrics(BuildLabels("ps-worker"), families);
    return HttpReply{200, kMetricsContentType, families.Text()};
  };
  pages["/livez"] = [] { return HttpReply{.body = "ok\n"}; };
  pages["/readyz"] = [&metrics] {
    if (metrics.trains()) return HttpReply{.body = "ok\n"};
    return HttpReply{.status = 503, .body = "no worker of this process trains\n"};
  };
  return pages;
}

HttpSecurity SecurityOf(const TlsOptions& tls) {
  HttpSecurity security;
  if (tls.certificate.empty()) return security;
  security.tls = tls;
  if (tls.client_ca.empty()) return security;
  security.refuse = [](const HttpCaller& caller,
                       const std::string& path) -> std::optional<HttpReply> {
    if (path != "/metrics" || !caller.names.empty()) return std::nullopt;
    return HttpReply{.status = 401, .body = "a certificate is needed\n"};
  };
  return security;
}

}  // namespace syncgrads
