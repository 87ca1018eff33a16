// What this machine is called.

#ifndef SYNCGRADS_WORKER_BASE_HOST_NAME_H_
#define SYNCGRADS_WORKER_BASE_HOST_NAME_H_

#include <string>

namespace syncgrads {

// "localhost" if it has no name.
std::string HostName();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_HOST_NAME_H_
