// The host's id, by which two processes find out whether they share a host.

#ifndef SYNCGRADS_COMMON_SHM_HOST_H_
#define SYNCGRADS_COMMON_SHM_HOST_H_

#include <string>

namespace syncgrads {

// Returns the kernel's boot id. It is the same for all processes on a host, including those in
// containers, and differs between hosts. Returns an empty string if it cannot be read.
std::string HostId();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_HOST_H_
