// Trains a model on generated images with the code of one worker and without servers, and prints
// the number of images per second. The batch is in the host's memory and is copied to the device in
// every step.

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/statusor.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "common/update_rule.h"
#include "worker/base/random.h"
#include "worker/nn/build.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/nn/device_matrix.h"
#include "worker/nn/named_model.h"
#include "worker/run/exit_code.h"
#include "worker/train/compute.h"

ABSL_FLAG(std::string, model, "lenet", "a named model");
ABSL_FLAG(int64_t, channels, 1, "of an image");
ABSL_FLAG(int64_t, side, 8, "of an image, in pixels");
ABSL_FLAG(uint32_t, classes, 10, "");
ABSL_FLAG(int, batch, 32, "images");
ABSL_FLAG(uint32_t, threads, 0, "of the processor; 0: all");
ABSL_FLAG(double, seconds, 4, "");
ABSL_FLAG(std::string, device, "cpu", "as ps-worker's");
ABSL_FLAG(std::string, precision, "f32", "as ps-worker's");
ABSL_FLAG(bool, cudnn, true, "as ps-worker's");

namespace syncgrads {
namespace {

constexpr int kWarmUpSteps = 3;

// Applies Adam on the device.
class Updates {
 public:
  // Both arguments must outlive this object.
  Updates(Device<float>& device, Model<float>& model) : device_(device), model_(model) {
    for (const Parameter<float>* parameter : model.parameters()) {
      std::vector<DeviceMatrix<float>>& slots = slots_.emplace_back();
      for (int i = 0; i < SlotCount(rule_); ++i) {
        slots.emplace_back(device.memory(), 1, parameter->values.size());
        device.memory().SetZero(slots.back().data(), slots.back().bytes());
      }
    }
  }

  void Apply() {
    ++step_;
    std::vector<ArrayUpdate<float>> updates;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Parameter<float>& parameter = *model_.parameters()[i];
      updates.push_back(
          {step_, parameter.values.size(), parameter.device_gradient(), parameter.device_values()});
      for (size_t s = 0; s < slots_[i].size(); ++s) updates[i].slots[s] = slots_[i][s].data();
    }
    device_.Update(rule_, updates);
  }

 private:
  const Optimizer rule_ = Adam();
  Device<float>& device_;
  Model<float>& model_;
  std::vector<std::vector<DeviceMatrix<float>>> slots_;  // for each parameter
  uint64_t step_ = 0;
};

absl::StatusOr<double> ImagesPerSecond() {
  const uint32_t classes = absl::GetFlag(FLAGS_classes);
  const int batch = absl::GetFlag(FLAGS_batch);
  const int64_t side = absl::GetFlag(FLAGS_side);
  const Shape shape = Shape::Image(absl::GetFlag(FLAGS_channels), side, side);
  v1::NamedModel named;
  named.set_name(absl::GetFlag(FLAGS_model));
  named.set_outputs(classes);
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::ModelSpec spec, ExpandNamedModel(named));
  SYNCGRADS_ASSIGN_OR_RETURN(
      const DeviceChoice choice,
      ChooseDevice(absl::GetFlag(FLAGS_device), absl::GetFlag(FLAGS_precision),
                   /*local_rank=*/0, CudaAccelerators(absl::GetFlag(FLAGS_cudnn))));
  std::cerr << DescriptionOf(choice) << "\n";
  v1::JobFile job;
  job.set_threads(absl::GetFlag(FLAGS_threads));
  SYNCGRADS_ASSIGN_OR_RETURN(const auto device, MakeDevice<float>(job, /*world_size=*/1, choice));
  SYNCGRADS_ASSIGN_OR_RETURN(const auto model,
                             BuildModel<float>(spec, shape, NoCustomLayers(), *device));
  model->Initialise(1);
  Updates updates(*device, *model);

  RandomStream random(1, {});
  Matrix<float> images(batch, shape.size());
  for (Eigen::Index i = 0; i < images.size(); ++i) {
    images.data()[i] = static_cast<float>(2 * random.NextUniform() - 1);
  }
  std::vector<double> targets;
  for (int i = 0; i < batch; ++i) {
    targets.push_back(static_cast<double>(random.NextBelow(classes)));
  }
  Pass pass;
  pass.training = true;
  const auto step = [&] {
    const auto nothing = [](size_t) { return absl::OkStatus(); };
    SYNCGRADS_RETURN_IF_ERROR(
        model->ComputeGradients(pass, images, Loss(), targets, batch, nothing, nothing));
    updates.Apply();
    return absl::OkStatus();
  };
  for (int i = 0; i < kWarmUpSteps; ++i) SYNCGRADS_RETURN_IF_ERROR(step());
  SYNCGRADS_RETURN_IF_ERROR(device->memory().Finish());
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  int64_t steps = 0;
  for (; elapsed() < absl::GetFlag(FLAGS_seconds); ++steps) SYNCGRADS_RETURN_IF_ERROR(step());
  SYNCGRADS_RETURN_IF_ERROR(device->memory().Finish());
  return static_cast<double>(steps * batch) / elapsed();
}

}  // namespace
}  // namespace syncgrads

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::StatusOr<double> speed = syncgrads::ImagesPerSecond();
  if (!speed.ok()) {
    std::cerr << "train_alone: " << speed.status() << "\n";
    return syncgrads::ExitCodeOf(speed.status(), absl::OkStatus());
  }
  std::cout << *speed << std::endl;
}
