// How much memory this process may still take.

#ifndef SYNCGRADS_COMMON_MEMORY_LIMIT_H_
#define SYNCGRADS_COMMON_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace syncgrads {

// In bytes: what the machine has available, or what is left below the limit of
// this process's control group, whichever is less. Shared memory that is taken
// beyond it is no error but the end of some process.
//
// `root` is "" but in tests. What cannot be read is no limit.
uint64_t AvailableMemory(const std::string& root = "");

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_MEMORY_LIMIT_H_
