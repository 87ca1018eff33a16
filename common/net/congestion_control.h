// The congestion control of a TCP socket, where a program is to have another than the
// kernel's default.

#ifndef SYNCGRADS_COMMON_NET_CONGESTION_CONTROL_H_
#define SYNCGRADS_COMMON_NET_CONGESTION_CONTROL_H_

#include <string>

#include "absl/status/status.h"

namespace syncgrads {

// Whether this process may choose the congestion control of this name, one of
// /proc/sys/net/ipv4/tcp_available_congestion_control. Empty stands for the default.
//
// Errors:
//   InvalidArgument   the kernel has none of this name; says which it has
//   PermissionDenied  the kernel does not let this process choose it
absl::Status CheckCongestionControl(const std::string& name);

// Sets it for a TCP socket, or for all that one accepts that listens. Any other socket, and
// what the kernel refuses, stays as it is.
void SetCongestionControl(int socket, const std::string& name);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_CONGESTION_CONTROL_H_
