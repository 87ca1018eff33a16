// The ids by which two processes find out whether they can share memory.

#ifndef SYNCGRADS_COMMON_SHM_HOST_H_
#define SYNCGRADS_COMMON_SHM_HOST_H_

#include <cstdint>
#include <string>

namespace syncgrads {

// Returns the kernel's boot id. It is the same for all processes on a host, including those in
// containers, and differs between hosts. Returns an empty string if it cannot be read.
std::string HostId();

// Returns the number of this process's network namespace. Processes of one host that share memory
// find each other by an abstract unix socket, which exists in one network namespace only. A
// container usually has its own. Returns 0 if it cannot be read.
uint64_t NetworkNamespace();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_HOST_H_
