// Counts what kernels, matrix products and copies do, for Options::counts.

#ifndef SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_COUNTING_H_
#define SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_COUNTING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/worker/nn/cuda/emulation/emulation.h"

namespace syncgrads::emulation {

// A set of bytes in a range of memory.
//
// Not thread-safe.
class Footprint {
 public:
  // The range is [begin, begin + bytes).
  Footprint(const void* begin, size_t bytes);
  ~Footprint();
  Footprint(const Footprint&) = delete;
  Footprint& operator=(const Footprint&) = delete;

  // Adds `bytes` bytes from `address` on. Ignores addresses that are outside of the range.
  void Add(const void* address, size_t bytes);
  // Removes all bytes and returns how many there were.
  uint64_t Take();

 private:
  const uintptr_t begin_;
  const size_t bytes_;
  uint64_t* words_;  // a bit for each byte of the range
  uint64_t count_ = 0;
};

// The launches that a device has executed.
//
// Not thread-safe.
class LaunchCounter {
 public:
  // The device's memory is [memory, memory + bytes).
  LaunchCounter(const void* memory, size_t bytes);

  void Add(Launch launch) { launches_.push_back(std::move(launch)); }

  // Adds a launch of a kernel and counts the bytes that run() loads and stores. If a kernel of this
  // type has run with the same arguments, except for the addresses in them, its bytes are used
  // instead of calling run(). `type` is a name of std::type_info.
  void AddKernel(const char* type, const std::string& arguments, const std::function<void()>& run);

  // Returns the launches since the last call.
  std::vector<Launch> Take();

 private:
  struct Traffic {
    uint64_t read = 0;
    uint64_t written = 0;
  };
  // Replaces addresses in the device's memory by their numbers, in the order of their first
  // occurrence. `arguments` begins with words of 8 bytes.
  std::string WithoutAddresses(std::string arguments) const;

  const uintptr_t memory_;
  const size_t bytes_;
  Footprint read_, written_;
  std::unordered_map<std::string, Traffic> known_;  // by type and arguments
  std::vector<Launch> launches_;
};

// Called for each load and store of the kernels in :counted_emulation.
void CountLoad(const void* address, size_t bytes);
void CountStore(const void* address, size_t bytes);

}  // namespace syncgrads::emulation

#endif  // SYNCGRADS_TESTS_WORKER_NN_CUDA_EMULATION_COUNTING_H_
