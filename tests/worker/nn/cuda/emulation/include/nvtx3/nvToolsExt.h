// Takes the place of NVTX, by which profilers name what is queued.

#ifndef SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_INCLUDE_NVTX3_NVTOOLSEXT_H_
#define SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_INCLUDE_NVTX3_NVTOOLSEXT_H_

extern "C" {

// Return the level of the range, from 0; -1 if there is none to end.
int nvtxRangePushA(const char* name);
int nvtxRangePop();

}  // extern "C"

#endif  // SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_INCLUDE_NVTX3_NVTOOLSEXT_H_
