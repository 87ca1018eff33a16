// Parses and checks the addresses in flags and job files.

#ifndef SYNCGRADS_COMMON_NET_ADDRESS_H_
#define SYNCGRADS_COMMON_NET_ADDRESS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;

  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// Returns "host:port", with an IPv6 address in brackets.
std::string ToString(const HostPort& address);

// Whether only processes of this host can connect to an address to listen on: "localhost",
// 127.x.x.x or ::1, with or without brackets.
bool IsLoopback(absl::string_view host);

// Returns true if `host` is a loopback address, or the address of an interface of this process's
// network namespace. Brackets around an IPv6 address are ignored. A connection from such an address
// comes from the same namespace.
bool IsOwnAddress(absl::string_view host);

// Returns the text by which the peers with an address are counted: an IPv4 address, or the /64
// network of an IPv6 address, since one host may use all of its addresses. For the same reason, all
// loopback addresses (127.x.x.x and ::1) count as 127.0.0.1. An IPv4 address in the form
// ::ffff:10.0.0.1 counts as 10.0.0.1. Another text is returned as it is.
std::string NetworkOf(absl::string_view address);

// Parses HOST:PORT. HOST is a host name, an IPv4 address, or an IPv6 address in brackets. PORT is
// from 1 to 65535. `what` is the name of the value in errors, for example "--server".
//
// Errors:
//   InvalidArgument  `text` is not such an address; the message has `what`, `text` and the reason
absl::StatusOr<HostPort> ParseHostPort(absl::string_view what, absl::string_view text);

// Parses HOST or HOST:PORT. If `text` has no port, the result has `port`, which may be 0. An IPv6
// address without a port needs no brackets.
//
// Errors:
//   InvalidArgument  `text` is not such an address; the message has `what`, `text` and the reason
absl::StatusOr<HostPort> ParseHostAndPort(absl::string_view what, absl::string_view text,
                                          uint16_t port);

// Parses an address to listen on: HOST:PORT as above, or HOST:0 for any free port.
//
// Errors:
//   InvalidArgument  `text` is not such an address; the message has `what`, `text` and the reason
absl::StatusOr<HostPort> ParseListenAddress(absl::string_view what, absl::string_view text);

// Checks an address to which a client can connect: HOST:PORT, unix:PATH or unix-abstract:NAME.
//
// Errors:
//   InvalidArgument  `text` is not such an address; the message has `what`, `text` and the reason
absl::Status CheckServerAddress(absl::string_view what, absl::string_view text);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_ADDRESS_H_
