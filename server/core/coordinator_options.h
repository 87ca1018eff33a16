// How long the coordinator waits for whom.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_OPTIONS_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_OPTIONS_H_

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "common/ids.h"

namespace syncgrads::server {

struct CoordinatorOptions {
  absl::Duration heartbeat_interval = absl::Seconds(2);
  // A member not heard of for so long is dropped.
  absl::Duration lease = absl::Seconds(30);
  // A member whose stream broke is dropped after so long.
  absl::Duration stream_grace = absl::Seconds(5);
  // A newcomer that has not been brought up to date for so long is dropped.
  absl::Duration join_timeout = absl::Minutes(1);
  // Bytes of memory that this server may still take; null: any number.
  std::function<uint64_t()> available_memory;
  // Of a job whose name is not known yet: larger than any that a coordinator that
  // has been forgotten can have given.
  Generation first_generation{1};
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_OPTIONS_H_
