// `psctl events`: prints what happens to jobs, workers and servers.

#ifndef SYNCGRADS_CLIENT_PSCTL_EVENTS_H_
#define SYNCGRADS_CLIENT_PSCTL_EVENTS_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/psctl/admin.h"

namespace syncgrads::client {

struct EventsOptions {
  // HOST:PORT of any server.
  std::string server;
  // Only events of this job; if empty, all events.
  std::string job;
  Caller caller;
  // How long each server may take to answer. New events are waited for without a limit.
  absl::Duration timeout;
  // Whether to wait for new events.
  bool follow = false;
  // The number of events to print, which are the newest ones. With `follow`: the number of new
  // events to print after all earlier ones. 0: no limit.
  uint64_t count = 0;
  // One JSON object on each line, instead of text.
  bool json = false;
};

// Prints the events that the servers keep, in the order of their dates, and with `follow` then each
// new one as it arrives.
//
// Errors:
//   Unavailable  a server did not answer, or its connection broke; the events of the others are
//                printed, and the message names the server
//   others       a server has refused the call
absl::Status PrintEvents(const EventsOptions& options, std::ostream& out);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_EVENTS_H_
