// `psctl doctor`: diagnoses the servers and the links to them.

#ifndef SYNCGRADS_CLIENT_PSCTL_DOCTOR_H_
#define SYNCGRADS_CLIENT_PSCTL_DOCTOR_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/psctl/admin.h"
#include "client/psctl/diagnosis.h"

namespace syncgrads::client {

// Resolves and asks all servers that `server`, HOST:PORT of one of them, leads to, measures the
// links to them and shared memory, and prints one sentence for each finding. Each server has
// `timeout` to answer, and as long again for the measurement of each direction. With `json`, each
// line is an object with `wrong`, true for a problem, and `text`.
//
// Errors:
//   FailedPrecondition  there are problems; the message has their number
absl::Status RunDoctor(const std::string& server, absl::Duration timeout,
                       const DoctorLimits& limits, const HostFacts& host, bool json,
                       std::ostream& out, const Caller& caller = Caller());

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_DOCTOR_H_
