// Creates the sockets that a server listens on, with the socket options that gRPC would set.

#ifndef SYNCGRADS_COMMON_NET_LISTENING_SOCKETS_H_
#define SYNCGRADS_COMMON_NET_LISTENING_SOCKETS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/file_descriptor.h"

namespace syncgrads {

struct ListenOptions {
  // An IPv4 address, an IPv6 address with or without brackets, or a host name, all of whose
  // addresses are listened on. "0.0.0.0" and "[::]" both mean all IPv4 and IPv6 addresses.
  std::string bind = "0.0.0.0";
  // 0: the kernel picks a free port.
  uint16_t port = 0;
  // The TCP congestion control of accepted connections; empty: the kernel's default.
  std::string congestion_control;
  // The kernel breaks a connection whose data is not acknowledged, or not read, for this long.
  // Zero: the kernel's default.
  absl::Duration user_timeout = absl::Seconds(10);
};

struct ListeningSockets {
  // At least one non-blocking socket; all listen on `port`.
  std::vector<FileDescriptor> sockets;
  uint16_t port = 0;
};

// Listens for TCP connections. The port may still have connections of an earlier process in
// TIME_WAIT (SO_REUSEADDR), but no other process may listen on it.
//
// Errors:
//   Unavailable  the address cannot be listened on; has the address and the reason
absl::StatusOr<ListeningSockets> ListenTcp(const ListenOptions& options);

// Listens on the abstract unix socket `name`.
//
// Errors:
//   Unavailable  the socket cannot be listened on; has its name and the reason
absl::StatusOr<FileDescriptor> ListenUnix(const std::string& name);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_LISTENING_SOCKETS_H_
