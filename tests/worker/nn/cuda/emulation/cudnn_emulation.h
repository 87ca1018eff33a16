// An emulated cuDNN, for the emulated device: see emulation.h. It checks attributes, the order of
// calls and alignment, proposes engines that must not be used before those that may be, and
// computes with plain loops in double precision. It overwrites the workspace of each convolution.

#ifndef SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_CUDNN_EMULATION_H_
#define SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_CUDNN_EMULATION_H_

#include <cstdint>
#include <vector>

namespace syncgrads::emulation {

struct CudnnOptions {
  bool is_installed = true;
  bool can_be_created = true;  // cudnnCreate succeeds
  bool has_plans = true;       // plans can be finalized
  bool executes = true;        // cudnnBackendExecute succeeds
  // The workspace of the engines that may be used. The one that rounds to TF32 has twice as much.
  int64_t workspace_bytes = 1000;
};

// Sets the options, and forgets what has been executed. Call it while no device is open.
void ConfigureCudnn(const CudnnOptions& options);

// The engines that may be used.
inline constexpr int kTensorCoreEngine = 5;  // rounds factors to TF32
inline constexpr int kExactEngine = 7;

// Returns the engines that were executed since ConfigureCudnn or the last call, in the order of
// cudnnBackendExecute. Calls that failed are not counted.
std::vector<int> TakeExecutedEngines();

// Returns the number of handles and descriptors that have not been destroyed.
int64_t CountCudnnObjects();

}  // namespace syncgrads::emulation

#endif  // SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_CUDNN_EMULATION_H_
