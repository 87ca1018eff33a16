// CUDA devices as accelerators.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUDA_ACCELERATORS_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUDA_ACCELERATORS_H_

#include "worker/nn/accelerators.h"

namespace syncgrads {

// The CUDA devices of this machine. In a program that was built without the CUDA toolkit: no
// devices, see NoAccelerators. With `cudnn`, devices compute convolutions by cuDNN where it is
// installed. They print to standard error if it fails.
const Accelerators& CudaAccelerators(bool cudnn = true);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUDA_ACCELERATORS_H_
