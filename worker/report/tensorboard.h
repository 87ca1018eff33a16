// Writes training runs for TensorBoard.

#ifndef SYNCGRADS_WORKER_REPORT_TENSORBOARD_H_
#define SYNCGRADS_WORKER_REPORT_TENSORBOARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "proto/tensorboard.pb.h"
#include "worker/base/log_file.h"
#include "worker/report/progress.h"

namespace syncgrads {

// An event file of TensorBoard. Each record has its length, the length's checksum, an
// event of proto/tensorboard.proto, and the event's checksum. Not thread-safe.
class TensorboardFile {
 public:
  // Creates `directory`, and in it a file with a name unique to this process. `clock`
  // outlives this object. Errors: those of LogFile::Open.
  static absl::StatusOr<std::unique_ptr<TensorboardFile>> Create(const std::string& directory,
                                                                 const Clock& clock,
                                                                 LogFile::Warn warn = nullptr);

  const std::string& path() const { return path_; }

  // Writes the names and values of scalars at a step.
  void Add(uint64_t step, const std::vector<std::pair<std::string, double>>& scalars);

 private:
  TensorboardFile(LogFile file, std::string path, const Clock& clock);
  void Write(const v1::TensorboardEvent& event);

  const std::string path_;
  const Clock& clock_;
  LogFile file_;
};

// Writes training/loss, own_loss, steps_per_s, rows_per_s, learning_rate, reads and waits, with the
// meanings that progress_log.h describes; each validation (validation/val_loss, validation/top1);
// and the final evaluation. The trainer's thread calls it. Not thread-safe.
class TensorboardProgress : public Progress {
 public:
  // Writes after every `every` (at least 1) steps. `clock` outlives this object.
  TensorboardProgress(std::unique_ptr<TensorboardFile> file, uint64_t every, const Clock& clock)
      : file_(std::move(file)), every_(every), clock_(clock), recent_(clock) {}

  void Started(const TrainingPlan& plan) override;
  void Used(const StepUse& use) override { recent_.Used(use); }
  void Averaged(const TeamAverage& average) override { recent_.Averaged(average); }
  void Stepped(uint64_t step, std::optional<double> loss) override;
  void Validated(uint64_t step, const Scores& scores) override;
  void Finished() override {}
  void Evaluated(absl::string_view rows, const Scores& scores) override;

 private:
  // Writes the scores as "GROUP/NAME".
  void Add(uint64_t step, absl::string_view group, const Scores& scores);

  const std::unique_ptr<TensorboardFile> file_;
  const StepInterval every_;
  const Clock& clock_;
  absl::Time started_;
  uint64_t step_ = 0;
  RecentStepsCollector recent_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_REPORT_TENSORBOARD_H_
