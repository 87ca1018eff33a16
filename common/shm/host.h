// Which host this is, for two processes to find out whether they share it.

#ifndef SYNCGRADS_COMMON_SHM_HOST_H_
#define SYNCGRADS_COMMON_SHM_HOST_H_

#include <string>

namespace syncgrads {

// The kernel's boot id: the same for all processes of a host, containers included,
// and of no other. Empty if it cannot be read.
std::string HostId();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_HOST_H_
