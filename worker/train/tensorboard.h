// Training runs in TensorBoard.

#ifndef SYNCGRADS_WORKER_TRAIN_TENSORBOARD_H_
#define SYNCGRADS_WORKER_TRAIN_TENSORBOARD_H_

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "proto/tensorboard.pb.h"
#include "worker/train/progress.h"

namespace syncgrads {

// An event file: records of a length, its checksum, an event of proto/tensorboard.proto,
// and that one's checksum.
//
// Not thread-safe.
class TensorboardFile {
 public:
  // Makes `directory`, and in it a file whose name no other run has. `clock` outlives this
  // object.
  //
  // Errors:
  //   PermissionDenied  it cannot be written
  static absl::StatusOr<std::unique_ptr<TensorboardFile>> Create(const std::string& directory,
                                                                 const Clock& clock);

  const std::string& path() const { return path_; }

  // Names with their values, at a step.
  void Add(uint64_t step, const std::vector<std::pair<std::string, double>>& scalars);

 private:
  TensorboardFile(std::string path, const Clock& clock);
  // Whole, so that TensorBoard can read while the run goes on.
  void Write(const v1::TensorboardEvent& event);

  const std::string path_;
  const Clock& clock_;
  std::ofstream file_;
};

// The training/loss and the training/steps_per_s of this worker, and what it is worth in
// the end.
class TensorboardProgress : public Progress {
 public:
  // Writes after every `every` (at least 1) steps. `clock` outlives this object.
  TensorboardProgress(std::unique_ptr<TensorboardFile> file, uint64_t every, const Clock& clock)
      : file_(std::move(file)), every_(every), clock_(clock) {}

  void Started(const TrainingPlan& plan) override;
  void Stepped(uint64_t step, std::optional<double> loss) override;
  void Finished() override {}
  void Evaluated(absl::string_view rows, const Scores& scores) override;

 private:
  const std::unique_ptr<TensorboardFile> file_;
  const StepInterval every_;
  const Clock& clock_;
  absl::Time started_;
  uint64_t step_ = 0;
  MeanLoss loss_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_TENSORBOARD_H_
