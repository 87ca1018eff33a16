// All outputs that show the progress of a run.

#ifndef SYNCGRADS_WORKER_RUN_RUN_PROGRESS_H_
#define SYNCGRADS_WORKER_RUN_RUN_PROGRESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/evaluation/evaluation.h"
#include "worker/report/figures_report.h"
#include "worker/report/progress.h"
#include "worker/report/progress_log.h"
#include "worker/report/tensorboard.h"
#include "worker/run/worker.h"
#include "worker/team/team.h"
#include "worker/train/compute.h"

namespace syncgrads {

// The console on rank 0, except at level warning, and on every worker the files of --progress_log
// and --tensorboard, the loggers that the program adds, the metrics of the process, and the reports
// to the coordinator. The trainer's thread calls it. Not thread-safe.
class RunProgress {
 public:
  // Opens the outputs that `options` ask for. `dependencies` and `team` outlive this object;
  // `worker` is the worker's name, and `device` what it computes on.
  //
  // Errors: those of ProgressLog::Open, TensorboardFile::Create and the program's MakeLogger.
  static absl::StatusOr<std::unique_ptr<RunProgress>> Create(const WorkerOptions& options,
                                                             const WorkerDependencies& dependencies,
                                                             const DeviceChoice& device,
                                                             const std::string& worker, Team& team);

  Progress& progress() { return all_; }
  ConsoleProgress& console() { return console_; }
  // Reports the final evaluation on `rows`, which is "trained_on" or "held_out".
  void Evaluated(absl::string_view rows, const Evaluation& evaluation);

 private:
  RunProgress(const WorkerOptions& options, const WorkerDependencies& dependencies);

  ConsoleProgress console_;
  std::unique_ptr<ProgressLog> log_;
  std::unique_ptr<TensorboardProgress> tensorboard_;
  std::vector<std::unique_ptr<Progress>> added_;  // by the program
  std::unique_ptr<Progress> metrics_;
  std::unique_ptr<FiguresReport> figures_;
  ProgressList all_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_RUN_PROGRESS_H_
