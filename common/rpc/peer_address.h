// The addresses in gRPC's names of peers.

#ifndef SYNCGRADS_COMMON_RPC_PEER_ADDRESS_H_
#define SYNCGRADS_COMMON_RPC_PEER_ADDRESS_H_

#include <string>

namespace syncgrads {

// Returns the address in gRPC's name for a peer, such as "ipv4:10.0.0.1:5000" or
// "ipv6:%5B::1%5D:5000", without the port and without brackets. For a peer on a unix socket,
// returns "unix".
std::string AddressOfPeer(const std::string& peer);

// Returns the address and the port in gRPC's name for a peer: "10.0.0.1:5000" or "[::1]:5000",
// without the zone of an IPv6 address. For a peer on a unix socket, returns "unix".
std::string EndpointOfPeer(const std::string& peer);

// Returns the address in gRPC's name for a peer without the port. An IPv6 address has brackets. If
// the peer has no address, because it is on a unix socket, returns 127.0.0.1.
std::string HostOfPeer(const std::string& peer);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_PEER_ADDRESS_H_
