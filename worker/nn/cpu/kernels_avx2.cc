#define SYNCGRADS_KERNELS Avx2Kernels
#define SYNCGRADS_EIGEN EigenForAvx2Kernels
#define SYNCGRADS_INSTRUCTION_SET "AVX2"
#include "worker/nn/cpu/kernels-inl.h"
