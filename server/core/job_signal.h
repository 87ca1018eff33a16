// What the coordinator tells a member.

#ifndef SYNCGRADS_SERVER_CORE_JOB_SIGNAL_H_
#define SYNCGRADS_SERVER_CORE_JOB_SIGNAL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/group.h"
#include "common/membership.h"

namespace syncgrads::server {

struct Welcome {
  MemberId member{};
  std::string name;
  std::vector<std::string> servers;
  absl::Duration heartbeat_interval;
  absl::Duration lease;
  absl::Duration stream_grace;
};
struct Registered {
  uint64_t request = 0;
  std::shared_ptr<const GroupPlan> plan;
};
struct Done {
  uint64_t request = 0;
};
struct Refused {
  uint64_t request = 0;
  absl::Status error;
};
struct Waiting {
  std::string reason;
};
// The membership is over; nothing follows.
struct Expelled {
  absl::Status reason;
};
// Somebody wants a checkpoint.
struct CheckpointAsked {};
// As it asked; nothing follows.
struct Farewell {
  uint64_t request = 0;
};

using JobSignal = std::variant<Welcome, Epoch, Registered, Done, Refused, Waiting, Expelled,
                               CheckpointAsked, Farewell>;

// Where signals for one member go: its Join stream. Send only queues; it never
// blocks or calls back.
class MemberLink {
 public:
  virtual ~MemberLink() = default;
  virtual void Send(Generation generation, const JobSignal& signal) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOB_SIGNAL_H_
