// The CUDA kernels, compiled for the CPU.

#include "worker/nn/cuda/column_kernels.cu"
#include "worker/nn/cuda/kernels.cu"
#include "worker/nn/cuda/optimizer_kernels.cu"
#include "worker/nn/cuda/window_kernels.cu"
