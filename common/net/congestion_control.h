// Sets the TCP congestion control of a socket, for programs that do not use the kernel's default.

#ifndef SYNCGRADS_COMMON_NET_CONGESTION_CONTROL_H_
#define SYNCGRADS_COMMON_NET_CONGESTION_CONTROL_H_

#include <string>

#include "absl/status/status.h"

namespace syncgrads {

// Checks that this process may use the congestion control `name`, which is one of
// /proc/sys/net/ipv4/tcp_available_congestion_control. An empty name stands for the default.
//
// Errors:
//   InvalidArgument   the kernel has none of this name, and the message lists those that it has;
//                     or no socket could be created for the check
//   PermissionDenied  the kernel does not allow this process to use it
absl::Status CheckCongestionControl(const std::string& name);

// Sets the congestion control of a TCP socket. If the socket listens, all sockets that it accepts
// get the same. An empty name changes nothing. Failures are ignored: other kinds of sockets, and
// sockets for which the kernel refuses, stay as they are.
void SetCongestionControl(int socket, const std::string& name);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_CONGESTION_CONTROL_H_
