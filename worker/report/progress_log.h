// Logs a training run as lines of JSON, for programs that display it.
//
//   {"event":"started","job":"iris","worker":"w0","host":"a","time":1760000000.125,
//    "steps":250,"workers":3,"batch_size":8,"parameters":235}
//   {"event":"step","job":"iris","worker":"w0","host":"a","time":1760000001.5,
//    "step":10,"steps":250,"loss":0.6931,"own_loss":0.7012,"steps_per_s":7.3,"rows_per_s":175.2,
//    "learning_rate":0.01,"reads":0.02,"waits":0.31}
//   {"event":"validated","job":"iris","worker":"w0",...,"step":120,"val_loss":0.07,"top1":0.9667}
//   {"event":"stopped_early","job":"iris","worker":"w0",...,"step":120,"reason":"val_loss has not
//    improved in 3 validations; the best, 0.07, was after step 30"}
//   {"event":"evaluated","job":"iris","worker":"w0",...,"step":250,"rows":"held_out",
//    "loss":0.07,"accuracy":0.9667}
//   {"event":"finished","job":"iris",...,"step":250}
//
// `time` is in seconds since 1970. `steps_per_s` is the mean of the run so far. `own_loss` is the
// mean over this worker's own batches since its last line, and missing if it had none. The other
// fields of a step are those of RecentSteps (worker/report/progress.h): `loss` is the newest mean
// over the batches of all workers, and missing if there is none since this worker's last line. In
// elastic jobs, and in other modes than `sync`, it is the same as `own_loss`. Numbers that are not
// finite are null.

#ifndef SYNCGRADS_WORKER_REPORT_PROGRESS_LOG_H_
#define SYNCGRADS_WORKER_REPORT_PROGRESS_LOG_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "worker/base/log_file.h"
#include "worker/report/progress.h"

namespace syncgrads {

// Appends to a file. Several workers of a host may write to the same file. The trainer's
// thread calls it. Not thread-safe.
class ProgressLog : public Progress {
 public:
  // Opens the file to append to it. A line is written after every `every` (at least 1)
  // steps. `clock` outlives this object. Errors: those of LogFile::Open.
  static absl::StatusOr<std::unique_ptr<ProgressLog>> Open(const std::string& path,
                                                           const std::string& worker,
                                                           uint64_t every, const Clock& clock,
                                                           LogFile::Warn warn = nullptr);

  void Started(const TrainingPlan& plan) override;
  void Used(const StepUse& use) override { recent_.Used(use); }
  void Averaged(const TeamAverage& average) override { recent_.Averaged(average); }
  void Stepped(uint64_t step, std::optional<double> loss) override;
  void Validated(uint64_t step, const Scores& scores) override;
  void StoppedEarly(uint64_t step, const std::string& reason) override;
  void Finished() override;
  void Evaluated(absl::string_view rows, const Scores& scores) override;

 private:
  ProgressLog(LogFile file, const std::string& worker, uint64_t every, const Clock& clock);
  // Writes one line: the fields that all events have, and `fields`, which begin with a
  // comma.
  void Write(absl::string_view event, absl::string_view fields);

  const std::string worker_;
  const StepInterval every_;
  const Clock& clock_;
  LogFile file_;
  TrainingPlan plan_;
  absl::Time started_;
  uint64_t step_ = 0;
  RecentStepsCollector recent_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_REPORT_PROGRESS_LOG_H_
