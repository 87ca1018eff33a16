#include "worker/nn/device_memory.h"

#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "worker/base/out_of_memory.h"

namespace syncgrads {
namespace {

// The size of a cache line.
constexpr std::align_val_t kAlignment{64};

}  // namespace

void* HostMemory::Allocate(size_t bytes) {
  void* const memory = ::operator new(bytes, kAlignment, std::nothrow);
  if (memory == nullptr) throw OutOfMemory(absl::StrCat("not enough memory for ", bytes, " bytes"));
  return memory;
}

void HostMemory::Free(void* memory) { ::operator delete(memory, kAlignment); }

void HostMemory::Copy(const void* from, size_t bytes, void* to) {
  if (from != to && bytes > 0) std::memcpy(to, from, bytes);
}

void HostMemory::SetZero(void* memory, size_t bytes) {
  if (bytes > 0) std::memset(memory, 0, bytes);
}

}  // namespace syncgrads
