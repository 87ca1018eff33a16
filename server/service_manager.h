// Tells systemd about this process: the protocol of sd_notify(3).

#ifndef SYNCGRADS_SERVER_SERVICE_MANAGER_H_
#define SYNCGRADS_SERVER_SERVICE_MANAGER_H_

#include "absl/strings/string_view.h"

namespace syncgrads::server {

// Sends `state`, such as "READY=1", to the socket in the environment variable NOTIFY_SOCKET. Does
// nothing without this variable, and ignores errors: a service manager that listens no more does
// not stop a server. Never blocks.
void NotifyServiceManager(absl::string_view state);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_MANAGER_H_
