// An emulated CUDA device: the host sources and kernels of worker/nn/cuda run on the CPU, for
// machines without a GPU.
//
// Queued operations run only when the host waits for something. Then the streams take turns in the
// most adverse order that the events permit. So the emulation shows these errors:
//
//   - A missing wait for an event or a stream: what is read is not there yet, or has been
//     overwritten.
//   - A copy from or to host memory that is not pinned, or from or to memory that is not the
//     device's: the call returns an error.
//   - An access of the host to the device's memory: a segmentation fault, because the memory is
//     accessible only while the device works.
//   - A read of memory that has not been written: the memory is filled with NaNs at first.
//   - A write past the end of the memory: found when the memory is freed.
//   - Threads of a kernel that depend on each other's order: they run one after the other,
//     forwards or backwards.
//
// It cannot show speed, races between threads within the arithmetic of one element, or the rounding
// of cuBLAS and cuDNN.
//
// Thread-safe: one mutex protects all devices.

#ifndef SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_EMULATION_H_
#define SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_EMULATION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"

namespace syncgrads::emulation {

// Which stream runs next, among those that do not wait for an event.
enum class Schedule {
  kRandom,
  kOldestStreamFirst,  // the stream that computes, which CudaMemory creates first
  kNewestStreamFirst,  // the stream that copies
};

// A fault in one operation, which tests of the operations must find.
enum class Fault {
  kNone,
  kDropWait,       // a stream does not wait for an event
  kShiftCopy,      // a copy reads 8 bytes too far on, or a memset begins there; both are shorter
  kShiftBlock,     // each block of a kernel, or column of a product, takes the next one's place
  kLoseLastBlock,  // the last block of a kernel, or the last column of a product, is missing
  kLoseTail,       // the last row of a kernel, or the last element of a product, is missing
};

struct Options {
  int devices = 2;
  size_t device_bytes = size_t{1} << 30;
  Schedule schedule = Schedule::kRandom;
  uint64_t seed = 1;
  bool backwards = false;  // the order of a kernel's threads
  // Whether a query of an event executes one operation, and not a random number of them: the host
  // then sees downloads end one by one.
  bool slow = false;
  // Counts the launches (TakeLaunches). Matrix products are not computed, and kernels run only once
  // for operands of the same sizes, so the results are not those of the operations.
  bool counts = false;
  // Plants this fault in one of the operations that can have it: in the one after the next
  // `correct` ones. With kEverywhereCorrect the operations are only listed (FaultPlaces).
  Fault fault = Fault::kNone;
  uint64_t correct = kEverywhereCorrect;
  static constexpr uint64_t kEverywhereCorrect = UINT64_MAX;
};

// Sets the options and resets the emulation. Aborts if a stream exists, so call it while no device
// is open.
void Configure(const Options& options);

// Simulates a kernel with an illegal memory access: from now on every call that belongs to a
// device's work returns an error, until Configure.
void Break();

// Simulates a device that hangs: from now on queued work makes no progress, until Configure. Calls
// that allocate or free memory or wait for the device never return, and neither does one that
// queues work behind 1,024 others. As on a real device, cudaEventQuery returns.
void Hang();

// The calls that can run out of memory.
enum class Call {
  kMalloc,      // cudaMalloc
  kMallocHost,  // cudaMallocHost
  kLaunch,      // of a kernel, when it is loaded
  kCublas,
  kCudnn,         // finalization of a plan, or its execution
  kCublasCreate,  // with the code "not initialised", which cuBLAS uses for this
  kCublasKernel,  // which cuBLAS loads: with the code "execution failed"
};
// Makes one call of this kind report that there is no memory: the one after the next `after` calls.
void Exhaust(Call call, uint64_t after = 0);

// Makes the next product of cuBLAS return the code "internal error", which says nothing about
// memory.
void BreakCublas();

// Returns the number of allocated bytes, over all devices.
size_t AllocatedBytes();

// Returns the number of bytes that have been pinned for reading only, since Configure.
size_t PinnedForReading();

// What a kernel, a matrix product or a copy does.
struct Launch {
  std::string name;
  // Bytes of the device's memory. A byte that is read several times counts once.
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  // Floating-point operations. They are counted for matrix products only.
  uint64_t operations = 0;
};

// Returns what the devices have executed since Configure or the last call, in the order of
// execution. Requires Options::counts. The bytes of kernels are counted in programs that link
// :counted_emulation; in others they are 0.
std::vector<Launch> TakeLaunches();

// Whether launches are counted.
bool Counts();

// The ranges of NVTX that this thread has begun, and how many of them it has not ended. A range
// that is ended but was not begun ends the process.
struct Ranges {
  uint64_t begun = 0;
  uint64_t open = 0;
};
Ranges RangesOfThread();

// Returns the names of the operations, since Configure, that can have Options::fault, in the order
// in which they were queued. The name of a wait has the operations before and after it, for example
// "download waits for FindLoss".
std::vector<std::string> FaultPlaces();

// For operations other than copies and waits: whether the operation that is queued now has this
// fault. `name` returns the operation's name.
bool HasFault(Fault fault, const std::function<std::string()>& name);

// Whether this call reports that there is no memory.
bool IsExhausted(Call call);

// Whether BreakCublas has been called. Forgets it.
bool TakeBrokenCublas();

// Sets the error that cudaGetLastError returns.
void SetLastError(cudaError_t error);

// For kernels: queues visit(block, thread) for each thread of each block. `kernel` is the name of
// the kernel's type, as of std::type_info, and `arguments` the bytes of its arguments.
cudaError_t QueueThreads(cudaStream_t stream, const dim3& grid, const dim3& block,
                         const char* kernel, std::string arguments,
                         std::function<void(const dim3& block, const dim3& thread)> visit);

// Returns the names of the functions and classes that a kernel's type consists of, for example
// "VisitStrip StripMoments".
std::string NameOfKernel(const char* type);

// For operations other than kernels: queues `work`, which does what `launch` describes.
cudaError_t Queue(cudaStream_t stream, Launch launch, std::function<void()> work);

}  // namespace syncgrads::emulation

#endif  // SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_EMULATION_H_
