// What code that is compiled with -fsanitize=thread calls before each load and store. This file
// takes the place of the thread sanitizer's library: it counts the accesses.

#include <cstddef>

#include "tests/worker/nn/cuda/emulation/counting.h"

using syncgrads::emulation::CountLoad;
using syncgrads::emulation::CountStore;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define SYNCGRADS_ACCESS(bytes)                                                   \
  void __tsan_read##bytes(void* address) { CountLoad(address, bytes); }           \
  void __tsan_write##bytes(void* address) { CountStore(address, bytes); }         \
  void __tsan_unaligned_read##bytes(void* address) { CountLoad(address, bytes); } \
  void __tsan_unaligned_write##bytes(void* address) { CountStore(address, bytes); }
SYNCGRADS_ACCESS(1)
SYNCGRADS_ACCESS(2)
SYNCGRADS_ACCESS(4)
SYNCGRADS_ACCESS(8)
SYNCGRADS_ACCESS(16)
#undef SYNCGRADS_ACCESS

void __tsan_read_range(void* address, size_t bytes) { CountLoad(address, bytes); }
void __tsan_write_range(void* address, size_t bytes) { CountStore(address, bytes); }

}  // extern "C"
