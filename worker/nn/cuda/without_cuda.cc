#include "worker/nn/cuda/cuda_accelerators.h"

namespace syncgrads {

const Accelerators& CudaAccelerators() { return NoAccelerators(); }

}  // namespace syncgrads
