// The control plane's messages as plain data: what proto/control.proto says,
// for a state machine that knows no protobuf. Field by field they mean what the
// contract says there.

#ifndef SYNCGRADS_CLIENT_SIGNALS_H_
#define SYNCGRADS_CLIENT_SIGNALS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/group.h"
#include "common/ids.h"
#include "common/membership.h"

namespace syncgrads::client {

// Worker to coordinator. The transport adds the protocol's version to a Hello.
struct Hello {
  std::string job;
  std::string token;
  std::string name;
  Incarnation incarnation{};
  std::optional<uint32_t> rank;
  uint32_t world_size = 0;
  std::string host;
  Generation generation{};
  uint32_t max_workers = 0;
  uint32_t min_workers = 0;
  absl::Duration step_timeout;
  bool only_running = false;
  std::string host_id;
};
struct Heartbeat {
  std::vector<GroupRound> progress;
};
struct RegisterGroup {
  uint64_t request = 0;
  GroupSpec spec;
  double link_rate = 0;  // bytes a second; 0: not measured
};
struct EndGroup {
  uint64_t request = 0;
  GroupId group{};
  Round last_round{};
};
struct Leave {
  uint64_t request = 0;
  std::vector<GroupRound> last_rounds;
};
struct Ready {
  uint64_t request = 0;
  GroupId group{};
};
struct CheckpointReport {
  uint64_t step = 0;
  // Where it is, or why there is none.
  absl::StatusOr<std::string> path;
};
using WorkerSignal =
    std::variant<Hello, Heartbeat, RegisterGroup, EndGroup, Leave, Ready, CheckpointReport>;

// Coordinator to worker.
struct Welcome {
  uint32_t protocol_version = 0;
  MemberId member{};
  std::string name;
  std::vector<std::string> servers;
  absl::Duration heartbeat_interval;
  absl::Duration lease;
};
struct Registered {
  uint64_t request = 0;
  GroupPlan plan;
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
struct Expelled {
  absl::Status error;
};
struct CheckpointAsked {};
struct JobSignal {
  Generation generation{};
  std::variant<Welcome, Epoch, Registered, Done, Refused, Waiting, Expelled, CheckpointAsked> kind;
};

// An open round and whom it waits for, as a server explains it.
struct RoundWait {
  GroupId group{};
  Round round{};
  std::string text;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SIGNALS_H_
