// Trains a model on generated images with the code of one worker and without servers, and prints
// the number of images per second.

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/statusor.h"
#include "bench/training_step.h"
#include "common/status_macros.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/run/exit_code.h"

ABSL_FLAG(double, seconds, 4, "");
ABSL_FLAG(std::string, device, "cpu", "as ps-worker's");
ABSL_FLAG(bool, cudnn, true, "as ps-worker's");

namespace syncgrads {
namespace {

constexpr int kWarmUpSteps = 3;

absl::StatusOr<double> ImagesPerSecond() {
  SYNCGRADS_ASSIGN_OR_RETURN(const auto step,
                             TrainingStep::Create(absl::GetFlag(FLAGS_device),
                                                  CudaAccelerators(absl::GetFlag(FLAGS_cudnn))));
  // gpu-check reads in it what computes convolutions.
  if (!step->description().empty()) std::cerr << step->description() << "\n";
  for (int i = 0; i < kWarmUpSteps; ++i) SYNCGRADS_RETURN_IF_ERROR(step->Queue());
  SYNCGRADS_RETURN_IF_ERROR(step->Finish());
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  int64_t steps = 0;
  for (; elapsed() < absl::GetFlag(FLAGS_seconds); ++steps) {
    SYNCGRADS_RETURN_IF_ERROR(step->Queue());
  }
  SYNCGRADS_RETURN_IF_ERROR(step->Finish());
  return static_cast<double>(steps * step->images()) / elapsed();
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
