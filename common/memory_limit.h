// The amount of memory that this process may allocate, and what is left of it.

#ifndef SYNCGRADS_COMMON_MEMORY_LIMIT_H_
#define SYNCGRADS_COMMON_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace syncgrads {

// Returns the available memory in bytes: the minimum of the machine's available memory and of what
// the memory limits of this process's control group, and of all groups above it, leave. Pages of
// files that the kernel frees first (inactive_file) count as unused. Allocating shared memory
// beyond that returns no error; instead the kernel kills a process.
//
// A file that does not exist or that this process may not read counts as no limit. `root` is a
// prefix of all paths, which only tests set.
//
// Errors:
//   Unavailable  a file could not be opened or read because descriptors or memory ran out, so the
//                available memory is unknown; the message names the file
absl::StatusOr<uint64_t> AvailableMemory(const std::string& root = "");

// Returns the memory in bytes of which AvailableMemory is a part: the minimum of the machine's
// memory and of the memory limits of this process's control group and of all groups above it.
// Returns 0 if it is not known. `root` is a prefix of all paths, which only tests set.
//
// Errors:
//   Unavailable  see AvailableMemory
absl::StatusOr<uint64_t> TotalMemory(const std::string& root = "");

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_MEMORY_LIMIT_H_
