// Prints what a training step launches on a CUDA device. There is a line for each launch: its name,
// the bytes of the device's memory that it reads and that it writes, and its floating-point
// operations, with tabs between them. The device is emulated.

#include <iostream>

#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "bench/training_step.h"
#include "common/status_macros.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "worker/nn/cuda/cuda_accelerators.h"

namespace syncgrads {
namespace {

absl::Status PrintLaunches() {
  emulation::Options options;
  options.device_bytes = size_t{128} << 30;  // of address space
  options.counts = true;
  emulation::Configure(options);
  SYNCGRADS_ASSIGN_OR_RETURN(const auto step,
                             TrainingStep::Create("cuda", CudaAccelerators(/*cudnn=*/false)));
  // The first step also has the copies that create the parameters.
  for (int i = 0; i < 2; ++i) {
    SYNCGRADS_RETURN_IF_ERROR(step->Finish());
    emulation::TakeLaunches();
    SYNCGRADS_RETURN_IF_ERROR(step->Queue());
  }
  SYNCGRADS_RETURN_IF_ERROR(step->Finish());
  for (const emulation::Launch& launch : emulation::TakeLaunches()) {
    std::cout << launch.name << '\t' << launch.bytes_read << '\t' << launch.bytes_written << '\t'
              << launch.operations << '\n';
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace syncgrads

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = syncgrads::PrintLaunches();
  if (status.ok()) return 0;
  std::cerr << "launches: " << status << "\n";
  return 1;
}
