#define SYNCGRADS_KERNELS BaselineKernels
#define SYNCGRADS_EIGEN EigenForBaselineKernels
#define SYNCGRADS_INSTRUCTION_SET "baseline"
#include "worker/nn/cpu/kernels-inl.h"
