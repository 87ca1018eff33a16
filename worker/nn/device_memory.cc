#include "worker/nn/device_memory.h"

#include <cstring>

namespace syncgrads {

void HostMemory::Copy(const void* from, size_t bytes, void* to) {
  if (from != to && bytes > 0) std::memcpy(to, from, bytes);
}

void HostMemory::SetZero(void* memory, size_t bytes) {
  if (bytes > 0) std::memset(memory, 0, bytes);
}

}  // namespace syncgrads
