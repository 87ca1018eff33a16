// Shows the progress of a training run to people.

#ifndef SYNCGRADS_WORKER_REPORT_PROGRESS_H_
#define SYNCGRADS_WORKER_REPORT_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/log_level.h"
#include "common/signals/figures.h"

namespace syncgrads {

// The sizes of a run, known before the first step.
struct TrainingPlan {
  std::string job;
  uint32_t workers = 0;
  uint32_t shards = 0;
  // The rows of all workers together.
  uint64_t training_rows = 0;
  uint64_t held_out_rows = 0;
  uint64_t parameters = 0;  // trainable numbers
  uint32_t batch_size = 0;  // rows of each worker
  // The number of steps until the last worker's data ends.
  uint64_t steps = 0;
  // Whether the losses of all workers are averaged (Progress::Averaged). True in jobs that are not
  // elastic and have the mode `sync`.
  bool averages_losses = false;
};

// "iris: 120 rows in 3 shards, 30 held out; 3 workers, batches of 8; 235 parameters; 250
// steps"
std::string ToString(const TrainingPlan& plan);

// The mean of a worker's losses since the last call of Take.
class MeanLoss {
 public:
  void Add(std::optional<double> loss) {
    if (!loss.has_value()) return;
    sum_ += *loss;
    ++count_;
  }
  // Returns the mean; nullopt if no loss has been added since the last call.
  std::optional<double> Take() {
    const uint64_t count = std::exchange(count_, 0);
    const double sum = std::exchange(sum_, 0);
    return count == 0 ? std::nullopt : std::optional<double>(sum / static_cast<double>(count));
  }

 private:
  double sum_ = 0;
  uint64_t count_ = 0;
};

// Decides when to report: after every multiple of a number of steps.
class StepInterval {
 public:
  // `steps` is at least 1.
  explicit StepInterval(uint64_t steps) : steps_(steps) {}
  // Whether a multiple of `steps` is greater than `before` and not greater than `step`.
  // Steps between the two may have been skipped.
  bool IsDue(uint64_t before, uint64_t step) const { return step / steps_ > before / steps_; }

 private:
  uint64_t steps_;
};

// Pairs of a name, such as "loss" or "accuracy", and a value.
using Scores = std::vector<std::pair<std::string, double>>;

// What a worker used for a step.
struct StepUse {
  // The rows of this worker's batch that it contributed.
  uint64_t rows = 0;
  // The times since the last step that was reported. The next step may have begun.
  StepTimes times;
  double learning_rate = 0;
};

// What the workers of a job have done together since the last average.
struct TeamAverage {
  // The last step that is a part of it, from 1.
  uint64_t step = 0;
  // The mean over the rows of all workers; nullopt if no worker had a batch.
  std::optional<double> loss;
  // The rows that all workers together have contributed in a second.
  double rows_per_s = 0;
};

// Receives the events of one worker's run, on the trainer's thread. Not thread-safe.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void Started(const TrainingPlan& plan) = 0;
  // Called before Stepped, about the same step.
  virtual void Used(const StepUse& /*use*/) {}
  // Reports that `step`, which counts from 1, is done. `loss` is that of this worker's
  // batch; nullopt if it had none.
  virtual void Stepped(uint64_t step, std::optional<double> loss) = 0;
  // Reports an average over all workers, if TrainingPlan::averages_losses: that of the first step
  // and that of the last one before Stepped is called about it, others within about two seconds.
  virtual void Averaged(const TeamAverage& /*average*/) {}
  // Reports a checkpoint that this worker has written, or could not write.
  virtual void Checkpointed(bool /*written*/) {}
  // Reports the scores of a validation while the worker trains: those of the model after `step`.
  virtual void Validated(uint64_t /*step*/, const Scores& /*scores*/) {}
  // Reports that the training ends after `step`, because the validations no longer improve.
  virtual void StoppedEarly(uint64_t /*step*/, const std::string& /*reason*/) {}
  virtual void Finished() = 0;
  // Called after Finished, with the scores of the final evaluation on `rows`, which is
  // "trained_on" or "held_out".
  virtual void Evaluated(absl::string_view /*rows*/, const Scores& /*scores*/) {}
};

// Forwards each event to several objects.
class ProgressList : public Progress {
 public:
  // `progress` outlives this object.
  void Add(Progress* progress) { all_.push_back(progress); }

  void Started(const TrainingPlan& plan) override {
    for (Progress* one : all_) one->Started(plan);
  }
  void Used(const StepUse& use) override {
    for (Progress* one : all_) one->Used(use);
  }
  void Stepped(uint64_t step, std::optional<double> loss) override {
    for (Progress* one : all_) one->Stepped(step, loss);
  }
  void Averaged(const TeamAverage& average) override {
    for (Progress* one : all_) one->Averaged(average);
  }
  void Checkpointed(bool written) override {
    for (Progress* one : all_) one->Checkpointed(written);
  }
  void Validated(uint64_t step, const Scores& scores) override {
    for (Progress* one : all_) one->Validated(step, scores);
  }
  void StoppedEarly(uint64_t step, const std::string& reason) override {
    for (Progress* one : all_) one->StoppedEarly(step, reason);
  }
  void Finished() override {
    for (Progress* one : all_) one->Finished();
  }
  void Evaluated(absl::string_view rows, const Scores& scores) override {
    for (Progress* one : all_) one->Evaluated(rows, scores);
  }

 private:
  std::vector<Progress*> all_;
};

// What a log shows of the steps since its last line.
struct RecentSteps {
  // In jobs whose losses are averaged, the newest average over all workers; nullopt if there was
  // none since the last line. In other jobs, own_loss.
  std::optional<double> loss;
  // The mean over this worker's own batches; nullopt if it had none.
  std::optional<double> own_loss;
  // The rows of all workers in a second, as last averaged; in other jobs, of this worker.
  double rows_per_s = 0;
  // That of the last step.
  double learning_rate = 0;
  // The parts of the time in which this worker has waited for its batches to be read, and for
  // results from the servers, and so for other workers; from 0 to 1.
  double reads = 0;
  double waits = 0;
};

// Collects RecentSteps for a log, which passes it the events of the same names. Not thread-safe.
class RecentStepsCollector {
 public:
  // `clock` outlives this object.
  explicit RecentStepsCollector(const Clock& clock) : clock_(clock) {}

  void Started(const TrainingPlan& plan);
  void Used(const StepUse& use);
  void Averaged(const TeamAverage& average);
  void Stepped(std::optional<double> loss) { own_.Add(loss); }

  // Returns what has been collected since the last call.
  RecentSteps Take();

 private:
  const Clock& clock_;
  bool averages_losses_ = false;
  absl::Time since_ = absl::UnixEpoch();
  uint64_t rows_ = 0;
  StepTimes times_;
  double learning_rate_ = 0;
  MeanLoss own_;
  // The newest average, which Take has not returned.
  std::optional<double> average_;
  double rows_per_s_ = 0;
};

// Ignores all events.
class NoProgress : public Progress {
 public:
  void Started(const TrainingPlan&) override {}
  void Stepped(uint64_t, std::optional<double>) override {}
  void Finished() override {}
};

// Prints to the console: on a terminal a moving bar, otherwise lines. Both have what RecentSteps
// has, but for own_loss.
class ConsoleProgress : public Progress {
 public:
  // Without a terminal, prints a line after every `every` steps, and after the last one. If
  // `every` is 0, it prints a line after the first step and then at most one in a second;
  // at level debug instead after every twentieth part of the planned steps, however long
  // that takes. `out` and `clock` outlive this object.
  ConsoleProgress(std::ostream& out, bool is_terminal, const Clock& clock, uint64_t every = 0,
                  LogLevel level = LogLevel::kInfo);

  void Started(const TrainingPlan& plan) override;
  void Used(const StepUse& use) override { recent_.Used(use); }
  void Averaged(const TeamAverage& average) override { recent_.Averaged(average); }
  void Stepped(uint64_t step, std::optional<double> loss) override;
  // Prints a line of its own: "validation after step 120: val_loss 0.071234  top1 0.9667".
  void Validated(uint64_t step, const Scores& scores) override;
  void StoppedEarly(uint64_t step, const std::string& reason) override;
  void Finished() override;
  // Prints a separate line, above the bar if there is one.
  void Note(const std::string& line);

 private:
  // Whether a line is printed after `step`, which is not the last one.
  bool IsLineDue(uint64_t step, absl::Time now) const;
  void ShowBar(uint64_t step, absl::Time now);
  void ShowLine(uint64_t step, absl::Time now);
  // "loss 0.693147  12.5 steps/s  400 rows/s  rate 0.01  reads 2 %  waits 30 %". The steps per
  // second are the mean of the run so far.
  std::string FiguresAt(uint64_t step, absl::Time now);

  std::ostream& out_;
  const bool is_terminal_;
  const Clock& clock_;
  const uint64_t every_;
  const LogLevel level_;
  TrainingPlan plan_;
  absl::Time started_;
  // When the bar or a line was last shown.
  absl::Time shown_ = absl::InfinitePast();
  // The step before the current one.
  uint64_t last_step_ = 0;
  RecentStepsCollector recent_;
  // The last loss shown.
  std::string loss_ = "-";
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_REPORT_PROGRESS_H_
