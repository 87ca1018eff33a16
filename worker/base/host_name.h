// The name of this machine.

#ifndef SYNCGRADS_WORKER_BASE_HOST_NAME_H_
#define SYNCGRADS_WORKER_BASE_HOST_NAME_H_

#include <string>

namespace syncgrads {

// Returns the host name, or "localhost" if there is none.
std::string HostName();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_HOST_NAME_H_
