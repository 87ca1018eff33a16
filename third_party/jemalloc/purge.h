// Returns freed memory to the kernel.

#ifndef SYNCGRADS_THIRD_PARTY_JEMALLOC_PURGE_H_
#define SYNCGRADS_THIRD_PARTY_JEMALLOC_PURGE_H_

namespace syncgrads {

// Returns all freed memory that the process has kept to the kernel, if the program's allocator is
// jemalloc. It takes milliseconds, and later allocations take page faults, so it is called after a
// job, not during one. Thread-safe.
void PurgeFreedMemory();

}  // namespace syncgrads

#endif  // SYNCGRADS_THIRD_PARTY_JEMALLOC_PURGE_H_
