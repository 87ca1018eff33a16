// What a person sees of a training run while it goes on.

#ifndef SYNCGRADS_WORKER_TRAIN_PROGRESS_H_
#define SYNCGRADS_WORKER_TRAIN_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

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

// Not thread-safe.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void Started(const TrainingPlan& plan) = 0;
  // `step` counts from 1. `loss` is that of this worker's batch, if it had one.
  virtual void Stepped(uint64_t step, std::optional<double> loss) = 0;
  virtual void Finished() = 0;
};

// What the other workers show.
class NoProgress : public Progress {
 public:
  void Started(const TrainingPlan&) override {}
  void Stepped(uint64_t, std::optional<double>) override {}
  void Finished() override {}
};

// On a terminal a bar that moves, elsewhere at most about twenty lines. The loss
// is the mean of this worker's batches since the last one shown.
class ConsoleProgress : public Progress {
 public:
  // `out` and `clock` outlive this object.
  ConsoleProgress(std::ostream& out, bool is_terminal, const Clock& clock);

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
  TrainingPlan plan_;
  absl::Time started_;
  absl::Time shown_;
  uint64_t shown_step_ = 0;
  double loss_sum_ = 0;
  uint64_t losses_ = 0;
  // The last one shown.
  std::string loss_ = "-";
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_PROGRESS_H_
