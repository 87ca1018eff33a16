// CUDA devices as accelerators.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUDA_ACCELERATORS_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUDA_ACCELERATORS_H_

#include "worker/nn/accelerators.h"

namespace syncgrads {

// Those of this machine; none, as NoAccelerators, in a program that was built
// without the CUDA toolkit.
const Accelerators& CudaAccelerators();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUDA_ACCELERATORS_H_
