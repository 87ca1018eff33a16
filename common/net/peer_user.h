// The user at the other end of a TCP connection within this host.

#ifndef SYNCGRADS_COMMON_NET_PEER_USER_H_
#define SYNCGRADS_COMMON_NET_PEER_USER_H_

#include <sys/socket.h>

#include "absl/status/statusor.h"

namespace syncgrads {

// Returns the user whose socket is at the other end of a connection from `peer` to `own`, two
// addresses of this host, in the ids of this process's user namespace. Asks the kernel (sock_diag).
//
// Errors:
//   NotFound     there is no such socket in this network namespace, or it has been closed
//   Unavailable  the kernel does not answer
absl::StatusOr<unsigned> UserOfTcpPeer(const sockaddr_storage& peer, const sockaddr_storage& own);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_PEER_USER_H_
