// What psctl can be told to do.

#ifndef SYNCGRADS_CLIENT_PSCTL_COMMANDS_H_
#define SYNCGRADS_CLIENT_PSCTL_COMMANDS_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/psctl/admin.h"

namespace syncgrads::client {

// How the commands are to be written, for --help.
extern const char kCommandUsage[];

// Runs a command, such as {"evict", "worker-2", "its disk is failing"}, and prints what
// comes of it.
//
// Errors:
//   InvalidArgument  there is no such command, or it is not told enough
//   Aborted          a checkpoint that was asked for could not be written: says why
//   others           as Admin's
absl::Status RunCommand(const std::vector<std::string>& words, Admin& admin, std::ostream& out);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_COMMANDS_H_
