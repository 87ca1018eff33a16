// Trains a model on made-up images with one worker's code and no service, and says
// how many images a second that is:
//
//   train_worker MODEL CHANNELS SIDE BATCH THREADS SECONDS

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "client/local_optimizer.h"
#include "common/status_macros.h"
#include "worker/base/random.h"
#include "worker/nn/build.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/named_model.h"

namespace syncgrads {
namespace {

constexpr int kClasses = 10;
constexpr int kWarmUpSteps = 3;

struct Case {
  std::string model;
  Shape shape;
  int batch = 0;
  int threads = 0;
  double seconds = 0;
};

absl::StatusOr<double> ImagesPerSecond(const Case& wanted) {
  v1::NamedModel named;
  named.set_name(wanted.model);
  named.set_outputs(kClasses);
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::ModelSpec spec, ExpandNamedModel(named));
  CpuDevice<float> device(wanted.threads);
  SYNCGRADS_ASSIGN_OR_RETURN(const auto model,
                             BuildModel<float>(spec, wanted.shape, NoCustomLayers(), device));
  model->Initialise(1);
  std::vector<TensorSpec> tensors;
  for (const Parameter<float>* parameter : model->parameters()) {
    tensors.push_back(parameter->spec());
  }
  SYNCGRADS_ASSIGN_OR_RETURN(LocalOptimizer optimizer, LocalOptimizer::Create(Adam(), tensors));

  RandomStream random(1, {});
  Matrix<float> images(wanted.batch, wanted.shape.size());
  for (Eigen::Index i = 0; i < images.size(); ++i) {
    images.data()[i] = static_cast<float>(2 * random.NextUniform() - 1);
  }
  std::vector<double> targets;
  for (int i = 0; i < wanted.batch; ++i) {
    targets.push_back(static_cast<double>(random.NextBelow(kClasses)));
  }
  Pass pass;
  pass.training = true;
  const auto bytes = [](HostMatrix<float>& values) {
    return absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()),
                          values.size() * sizeof(float));
  };
  const auto step = [&] {
    const auto needed = [](size_t) { return absl::OkStatus(); };
    return model->ComputeGradients(
        pass, images, Loss(), targets, wanted.batch, needed, [&](size_t i) {
          Parameter<float>& parameter = *model->parameters()[i];
          return optimizer.Apply(TensorId{static_cast<uint32_t>(i)}, bytes(parameter.gradient),
                                 bytes(parameter.values));
        });
  };
  for (int i = 0; i < kWarmUpSteps; ++i) SYNCGRADS_RETURN_IF_ERROR(step());
  const auto begin = std::chrono::steady_clock::now();
  double elapsed = 0;
  int64_t steps = 0;
  while (elapsed < wanted.seconds) {
    SYNCGRADS_RETURN_IF_ERROR(step());
    ++steps;
    elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return static_cast<double>(steps * wanted.batch) / elapsed;
}

}  // namespace
}  // namespace syncgrads

int main(int argc, char** argv) {
  if (argc != 7) {
    std::cerr << "usage: train_worker MODEL CHANNELS SIDE BATCH THREADS SECONDS\n";
    return 2;
  }
  const int64_t side = std::atoi(argv[3]);
  const auto speed =
      syncgrads::ImagesPerSecond({argv[1], syncgrads::Shape::Image(std::atoi(argv[2]), side, side),
                                  std::atoi(argv[4]), std::atoi(argv[5]), std::atof(argv[6])});
  if (!speed.ok()) {
    std::cerr << "train_worker: " << speed.status() << "\n";
    return 1;
  }
  std::cout << *speed << std::endl;
}
