// The commands of psctl.

#ifndef SYNCGRADS_CLIENT_PSCTL_COMMANDS_H_
#define SYNCGRADS_CLIENT_PSCTL_COMMANDS_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/psctl/admin.h"
#include "client/psctl/doctor.h"
#include "common/tls/tls_options.h"

namespace syncgrads::client {

// The syntax of the commands, for --help.
extern const char kCommandUsage[];

// The flags of psctl.
struct CommandOptions {
  // HOST:PORT of the server to ask.
  std::string server;
  std::string job;
  // How connections are made; it must have passed CheckTls. The token that calls send.
  TlsOptions tls;
  std::string token;
  std::string server_token;
  // The maximum time of each call; nullopt: 30 s, and 2 s for each server of status, top, doctor
  // and events.
  std::optional<absl::Duration> timeout;
  // top: the refresh interval; nullopt: 1 s. status: if it is set, the time between two queries,
  // from which rates are computed.
  std::optional<absl::Duration> interval;
  // top: the number of refreshes; events: see EventsOptions; 0: no limit.
  uint64_t count = 0;
  // events: wait for new events.
  bool follow = false;
  // "text" or "json".
  std::string output = "text";
  // trace: how long to record; nullopt: 5 s, and with start 60 s at most. The file to write.
  std::optional<absl::Duration> length;
  std::string path = "trace.json";
  // trace start and stop: see RecorderOptions.
  std::string recorder_directory;
  // top: clear the terminal before each refresh.
  bool is_terminal = false;
  DoctorLimits limits;
};

// Runs a command, such as {"evict", "worker-2", "its disk is failing"}, and prints its result to
// `terminal`, with control characters escaped. "trace start" forks: it must be called before this
// process uses gRPC.
//
// Errors:
//   InvalidArgument     the command is unknown, or an argument is missing or superfluous
//   Aborted             a requested checkpoint could not be written; the message has the reason.
//                       set: another request has set another factor meanwhile
//   DeadlineExceeded    checkpoint, set: the message names whom it waits for
//   Unavailable         status, top: a server did not answer; what others have answered is printed
//                       events: a server did not answer, or its connection broke
//                       trace: a server or a worker is missing; the file has the others
//   FailedPrecondition  doctor: there is a problem
//                       set learning-rate: no worker has reported its learning rate
//                       trace start: a recording is in progress
//   NotFound            trace stop: no recording is in progress
//   others              those of Admin
absl::Status RunCommand(const std::vector<std::string>& words, const CommandOptions& options,
                        std::ostream& terminal);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_COMMANDS_H_
