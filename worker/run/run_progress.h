// All that shows how a run goes on.

#ifndef SYNCGRADS_WORKER_RUN_RUN_PROGRESS_H_
#define SYNCGRADS_WORKER_RUN_RUN_PROGRESS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/run/worker.h"
#include "worker/train/evaluation.h"
#include "worker/train/progress.h"
#include "worker/train/progress_log.h"
#include "worker/train/tensorboard.h"

namespace syncgrads {

// The console of rank 0, and the files that the options ask of every worker. Not
// thread-safe.
class RunProgress {
 public:
  // `surroundings` outlive this object; `worker` is what the worker is called.
  //
  // Errors: as ProgressLog::Open and TensorboardFile::Create.
  static absl::StatusOr<std::unique_ptr<RunProgress>> Create(const WorkerOptions& options,
                                                             const WorkerSurroundings& surroundings,
                                                             const std::string& worker,
                                                             bool is_master);

  Progress& progress() { return all_; }
  ConsoleProgress& console() { return console_; }
  // What the model is worth on those `rows`: "trained_on" or "held_out".
  void Evaluated(absl::string_view rows, const Evaluation& evaluation);

 private:
  RunProgress(const WorkerOptions& options, const WorkerSurroundings& surroundings);

  ConsoleProgress console_;
  std::unique_ptr<ProgressLog> log_;
  std::unique_ptr<TensorboardProgress> tensorboard_;
  ProgressList all_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_RUN_PROGRESS_H_
