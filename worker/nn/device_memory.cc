#include "worker/nn/device_memory.h"

#include <cstring>
#include <new>

namespace syncgrads {
namespace {

// The size of a cache line.
constexpr std::align_val_t kAlignment{64};

}  // namespace

void* HostMemory::Allocate(size_t bytes) { return ::operator new(bytes, kAlignment); }

void HostMemory::Free(void* memory) { ::operator delete(memory, kAlignment); }

void HostMemory::Copy(const void* from, size_t bytes, void* to) {
  if (from != to && bytes > 0) std::memcpy(to, from, bytes);
}

void HostMemory::SetZero(void* memory, size_t bytes) {
  if (bytes > 0) std::memset(memory, 0, bytes);
}

}  // namespace syncgrads
