#define SYNCGRADS_KERNELS Avx512Kernels
#define SYNCGRADS_EIGEN EigenForAvx512Kernels
#define SYNCGRADS_INSTRUCTION_SET "AVX-512"
#include "worker/nn/cpu/kernels-inl.h"
