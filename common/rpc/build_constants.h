// Strings that the build generates (see the target build_constants).

#ifndef SYNCGRADS_COMMON_RPC_BUILD_CONSTANTS_H_
#define SYNCGRADS_COMMON_RPC_BUILD_CONSTANTS_H_

namespace syncgrads {

extern const char kBuildVersion[];
extern const char kBuildCommit[];
// CUDART_VERSION of the toolkit: 13000 for CUDA 13.0; 0 without a toolkit.
extern const int kBuildCudaVersion;

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_BUILD_CONSTANTS_H_
