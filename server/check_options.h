// What can be known of a server's options before it listens.

#ifndef SYNCGRADS_SERVER_CHECK_OPTIONS_H_
#define SYNCGRADS_SERVER_CHECK_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tls/tls_options.h"
#include "server/server.h"

namespace syncgrads::server {

// Errors:
//   InvalidArgument  a value is out of range, or contradicts another; the message has both
//   others           those of CheckTls and CheckCongestionControl
absl::Status CheckOptions(const ServerOptions& options);

// Returns the address that a server advertises to workers if it listens on `port`; empty if
// options.advertise is empty.
//
// Errors:
//   InvalidArgument  options.advertise is malformed
absl::StatusOr<std::string> Advertised(const ServerOptions& options, int port);

// Returns for which connections the server needs files for TLS.
TlsSide SideOf(const ServerOptions& options);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CHECK_OPTIONS_H_
