// A CUDA device that is none: the host sources and kernels of worker/nn/cuda run on
// the processor, for machines without a GPU.
//
// What is queued is put off until the host waits for something, and streams then
// take turns as adversely as events allow, so that an order which is not asked for is
// not had:
//
//   - an event or a stream that is not waited for: what is read is not yet there, or
//     is overwritten;
//   - a copy of memory of the host that is not pinned, or of memory that is not the
//     device's: an error;
//   - the device's memory touched by the host: it is mapped only while the device
//     works, so that this is a segmentation fault;
//   - memory read before it was written: it begins as NaNs; memory written past its
//     end: found when it is freed;
//   - threads of a kernel that depend on each other's order: they run one after the
//     other, forwards or backwards.
//
// What it cannot show: speed, races between threads within an element's arithmetic,
// and cuBLAS's own rounding.
//
// Thread-safe.

#ifndef SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_EMULATION_H_
#define SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_EMULATION_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda_runtime_api.h"

namespace syncgrads::emulation {

// Which stream goes on, of those that can.
enum class Schedule {
  kRandom,
  kOldestStreamFirst,  // what computes, as CudaMemory makes its streams
  kNewestStreamFirst,  // what copies
};

struct Options {
  int devices = 2;
  size_t device_bytes = size_t{1} << 30;
  Schedule schedule = Schedule::kRandom;
  uint64_t seed = 1;
  bool backwards = false;  // the threads of kernels
};

// While no device is open.
void Configure(const Options& options);

// Makes the next operation on a device fail, as a kernel that touches what it may
// not does: every call from then on, until Configure, is an error.
void Break();

// Bytes of all devices that are allocated.
size_t AllocatedBytes();

// For kernels: visit(block, thread) for each.
cudaError_t QueueThreads(cudaStream_t stream, const dim3& grid, const dim3& block,
                         std::function<void(const dim3& block, const dim3& thread)> visit);

// For what is not a kernel.
cudaError_t Queue(cudaStream_t stream, std::function<void()> work);

}  // namespace syncgrads::emulation

#endif  // SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_EMULATION_H_
