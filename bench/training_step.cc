#include "bench/training_step.h"

#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/memory/memory.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "worker/base/random.h"
#include "worker/nn/models/build.h"
#include "worker/nn/models/named_model.h"
#include "worker/train/compute.h"

ABSL_FLAG(std::string, model, "lenet", "a named model");
ABSL_FLAG(int64_t, channels, 1, "of an image");
ABSL_FLAG(int64_t, side, 8, "of an image, in pixels");
ABSL_FLAG(uint32_t, classes, 10, "");
ABSL_FLAG(int, batch, 32, "images");
ABSL_FLAG(uint32_t, threads, 0, "of the processor; 0: all");
ABSL_FLAG(std::string, precision, "f32", "as ps-worker's");

namespace syncgrads {

absl::StatusOr<std::unique_ptr<TrainingStep>> TrainingStep::Create(
    absl::string_view device, const Accelerators& accelerators) {
  v1::NamedModel named;
  named.set_name(absl::GetFlag(FLAGS_model));
  named.set_outputs(absl::GetFlag(FLAGS_classes));
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::ModelSpec spec, ExpandNamedModel(named));
  SYNCGRADS_ASSIGN_OR_RETURN(
      const DeviceChoice choice,
      ChooseDevice(device, absl::GetFlag(FLAGS_precision), /*local_rank=*/0, accelerators));
  v1::JobFile job;
  job.set_threads(absl::GetFlag(FLAGS_threads));
  SYNCGRADS_ASSIGN_OR_RETURN(auto made, MakeDevice<float>(job, /*world_size=*/1, choice));
  const int64_t side = absl::GetFlag(FLAGS_side);
  const Shape shape = Shape::Image(absl::GetFlag(FLAGS_channels), side, side);
  SYNCGRADS_ASSIGN_OR_RETURN(auto model, BuildModel<float>(spec, shape, NoCustomLayers(), *made));
  return absl::WrapUnique(
      new TrainingStep(DescriptionOf(choice), std::move(made), std::move(model)));
}

TrainingStep::TrainingStep(std::string description, std::unique_ptr<Device<float>> device,
                           std::unique_ptr<Model<float>> model)
    : description_(std::move(description)), device_(std::move(device)), model_(std::move(model)) {
  model_->Initialise(1);
  MakeBatch();
  for (const Parameter<float>* parameter : model_->parameters()) {
    std::vector<DeviceArray<float>>& slots = slots_.emplace_back();
    for (int i = 0; i < SlotCount(rule_); ++i) {
      slots.emplace_back(device_->memory(), 1, parameter->values.size());
      device_->memory().SetZero(slots.back().data(), slots.back().bytes());
    }
  }
}

void TrainingStep::MakeBatch() {
  RandomStream random(1, {});
  const Shape& shape = model_->input_shape();
  images_ = {absl::GetFlag(FLAGS_batch), shape.size(), shape.channels};
  for (int64_t i = 0; i < images_.size(); ++i) {
    pixels_.push_back(static_cast<unsigned char>(random.NextBelow(kPixelValues)));
  }
  for (int64_t i = 0; i < images_.channels * kPixelValues; ++i) {
    const double number = static_cast<double>(i % kPixelValues) / (kPixelValues - 1);
    numbers_.push_back(static_cast<float>(2 * number - 1));
  }
  images_.pixels = pixels_.data();
  images_.numbers = numbers_.data();
  for (int64_t i = 0; i < images(); ++i) {
    targets_.push_back(static_cast<double>(random.NextBelow(absl::GetFlag(FLAGS_classes))));
  }
}

absl::Status TrainingStep::Queue() {
  Pass pass;
  pass.training = true;
  const auto nothing = [](size_t) { return absl::OkStatus(); };
  SYNCGRADS_RETURN_IF_ERROR(model_->ComputeGradients(
      pass, images_, Loss(), targets_, static_cast<double>(images()), nothing, nothing));
  QueueUpdates();
  return absl::OkStatus();
}

void TrainingStep::QueueUpdates() {
  ++updates_;
  std::vector<ArrayUpdate<float>> updates;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Parameter<float>& parameter = *model_->parameters()[i];
    updates.push_back({updates_, parameter.values.size(), parameter.device_gradient(),
                       parameter.device_values()});
    for (size_t s = 0; s < slots_[i].size(); ++s) updates[i].slots[s] = slots_[i][s].data();
  }
  device_->Update(rule_, updates);
}

}  // namespace syncgrads
