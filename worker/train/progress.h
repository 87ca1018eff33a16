// What a person sees of a training run while it goes on.

#ifndef SYNCGRADS_WORKER_TRAIN_PROGRESS_H_
#define SYNCGRADS_WORKER_TRAIN_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace syncgrads {

// What is known before the first step.
struct TrainingPlan {
  std::string job;
  uint32_t workers = 0;
  uint32_t shards = 0;
  // Over all workers.
  uint64_t training_rows = 0;
  uint64_t held_out_rows = 0;
  uint64_t parameters = 0;  // numbers that are trained
  uint32_t batch_size = 0;  // of each worker
  // Steps until the last worker's data ends.
  uint64_t steps = 0;
};

// "iris: 120 rows in 3 shards, 30 held out; 3 workers, batches of 8; 235
// parameters; 250 steps"
std::string ToString(const TrainingPlan& plan);

// The mean of a worker's losses since the last time that it was taken.
class MeanLoss {
 public:
  void Add(std::optional<double> loss) {
    if (!loss.has_value()) return;
    sum_ += *loss;
    ++count_;
  }
  // None if there was no loss since.
  std::optional<double> Take() {
    const uint64_t count = std::exchange(count_, 0);
    const double sum = std::exchange(sum_, 0);
    return count == 0 ? std::nullopt : std::optional<double>(sum / static_cast<double>(count));
  }

 private:
  double sum_ = 0;
  uint64_t count_ = 0;
};

// Every so many steps.
class StepInterval {
 public:
  // `steps` is at least 1.
  explicit StepInterval(uint64_t steps) : steps_(steps) {}
  // Whether one has ended between step `before` and `step`: some may have been missed.
  bool IsDue(uint64_t before, uint64_t step) const { return step / steps_ > before / steps_; }

 private:
  uint64_t steps_;
};

// "loss", "accuracy" and so on, with their values.
using Scores = std::vector<std::pair<std::string, double>>;

// Not thread-safe.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void Started(const TrainingPlan& plan) = 0;
  // `step` counts from 1. `loss` is that of this worker's batch, if it had one.
  virtual void Stepped(uint64_t step, std::optional<double> loss) = 0;
  virtual void Finished() = 0;
  // After it has finished: what the model is worth on those `rows`: "trained_on" or
  // "held_out".
  virtual void Evaluated(absl::string_view /*rows*/, const Scores& /*scores*/) {}
};

// Several at once.
class ProgressList : public Progress {
 public:
  // `progress` outlives this object.
  void Add(Progress* progress) { all_.push_back(progress); }

  void Started(const TrainingPlan& plan) override {
    for (Progress* one : all_) one->Started(plan);
  }
  void Stepped(uint64_t step, std::optional<double> loss) override {
    for (Progress* one : all_) one->Stepped(step, loss);
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

class NoProgress : public Progress {
 public:
  void Started(const TrainingPlan&) override {}
  void Stepped(uint64_t, std::optional<double>) override {}
  void Finished() override {}
};

// On a terminal a bar that moves, elsewhere a line after every so many steps. The loss
// is the mean of this worker's batches since the last one shown.
class ConsoleProgress : public Progress {
 public:
  // A line after every `every` steps; 0: at most about twenty in all. `out` and `clock`
  // outlive this object.
  ConsoleProgress(std::ostream& out, bool is_terminal, const Clock& clock, uint64_t every = 0);

  void Started(const TrainingPlan& plan) override;
  void Stepped(uint64_t step, std::optional<double> loss) override;
  void Finished() override;
  // A line of its own, wherever the bar is.
  void Note(const std::string& line);

 private:
  void ShowBar(uint64_t step, absl::Time now);
  void ShowLine(uint64_t step, absl::Time now);
  // Works out the loss to show, and begins to gather the next one.
  void TakeLoss();
  // "12.5 steps/s", over the whole run so far.
  std::string SpeedAt(uint64_t step, absl::Time now) const;

  std::ostream& out_;
  const bool is_terminal_;
  const Clock& clock_;
  const uint64_t every_;
  TrainingPlan plan_;
  absl::Time started_;
  absl::Time shown_;
  uint64_t shown_step_ = 0;
  MeanLoss mean_;
  // The last one shown.
  std::string loss_ = "-";
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_PROGRESS_H_
