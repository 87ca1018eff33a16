// A training step on generated images, with the code of one worker and without servers.

#ifndef SYNCGRADS_BENCH_TRAINING_STEP_H_
#define SYNCGRADS_BENCH_TRAINING_STEP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/update_rule.h"
#include "worker/nn/accelerators.h"
#include "worker/nn/device.h"
#include "worker/nn/device_array.h"
#include "worker/nn/models/model.h"
#include "worker/nn/pixels.h"

namespace syncgrads {

// The flags --model, --channels, --side, --classes, --batch, --threads and --precision describe the
// step. The batch, images of 8 bits, is in the host's memory. Each step copies it to the device.
// Adam updates the parameters on the device.
//
// Not thread-safe.
class TrainingStep {
 public:
  // `device` is as ps-worker's flag. Errors: those of ExpandNamedModel, ChooseDevice, MakeDevice
  // and BuildModel.
  static absl::StatusOr<std::unique_ptr<TrainingStep>> Create(absl::string_view device,
                                                              const Accelerators& accelerators);

  // Queues the step. Errors: those of Model::ComputeGradients.
  absl::Status Queue();
  // Waits for all queued steps.
  absl::Status Finish() { return device_->memory().Finish(); }
  // Images of a step.
  int64_t images() const { return images_.rows; }
  // See DescriptionOf.
  const std::string& description() const { return description_; }

 private:
  TrainingStep(std::string description, std::unique_ptr<Device<float>> device,
               std::unique_ptr<Model<float>> model);
  void MakeBatch();
  void QueueUpdates();

  const std::string description_;
  const std::unique_ptr<Device<float>> device_;
  const std::unique_ptr<Model<float>> model_;
  std::vector<unsigned char> pixels_;
  std::vector<float> numbers_;  // that they stand for
  Pixels<float> images_;
  std::vector<double> targets_;
  const Optimizer rule_ = Adam();
  std::vector<std::vector<DeviceArray<float>>> slots_;  // for each parameter
  uint64_t updates_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_BENCH_TRAINING_STEP_H_
