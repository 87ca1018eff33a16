// Timeouts of the members of a job.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_MEMBERSHIP_OPTIONS_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_MEMBERSHIP_OPTIONS_H_

#include "absl/time/time.h"

namespace syncgrads::server {

struct MembershipOptions {
  // How often a member sends a heartbeat.
  absl::Duration heartbeat_interval = absl::Seconds(2);
  // How long a job waits for a member after its last heartbeat.
  absl::Duration lease = absl::Seconds(30);
  // The grace period: how long a job waits for a member whose stream broke.
  absl::Duration stream_grace = absl::Seconds(5);
  // How long a newcomer may take until it is up to date.
  absl::Duration join_timeout = absl::Minutes(1);
  // How long an abandoned job, whose members send no heartbeats, keeps its state. May be
  // infinite.
  absl::Duration abandoned_job_ttl = absl::Minutes(10);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_MEMBERSHIP_OPTIONS_H_
