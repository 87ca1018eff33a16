// The messages of a Join stream between a worker and the coordinator, as plain structs: for the
// client's state machine, the servers' core and the simulation, which do not use protobuf. Each
// field has the meaning that proto/control.proto gives for the field of the same name;
// common/contract/signals.h converts them.

#ifndef SYNCGRADS_COMMON_SIGNALS_SIGNALS_H_
#define SYNCGRADS_COMMON_SIGNALS_SIGNALS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/signals/figures.h"
#include "common/signals/membership.h"
#include "common/signals/protocol.h"

namespace syncgrads {

// Worker to coordinator.

// The request of a worker to join a job, or to reconnect to it.
struct Hello {
  uint32_t protocol_version = kProtocolVersion;
  std::string job;
  std::string token;
  // Empty: the coordinator assigns one.
  std::string name;
  Incarnation incarnation{};
  std::optional<uint32_t> rank;
  uint32_t world_size = 0;
  std::string host;
  // 0 on the worker's first stream.
  Generation generation{};
  // 0: the job is not elastic.
  uint32_t max_workers = 0;
  uint32_t min_workers = 0;
  // Zero: no limit.
  absl::Duration step_timeout;
  bool only_running = false;
  std::string host_id;
  std::string member_secret = {};

  friend bool operator==(const Hello&, const Hello&) = default;
};
struct Heartbeat {
  std::vector<GroupRound> progress;
  // nullopt: those of the earlier heartbeats remain.
  std::optional<TrainingFigures> figures;

  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};
struct RegisterGroup {
  uint64_t request = 0;
  GroupSpec spec;
  double link_rate = 0;  // bytes per second; 0: not measured
};
struct EndGroup {
  uint64_t request = 0;
  GroupId group{};
  Round last_round{};
  bool without_updates = false;

  friend bool operator==(const EndGroup&, const EndGroup&) = default;
};
struct Leave {
  uint64_t request = 0;
  std::vector<GroupRound> last_rounds;

  friend bool operator==(const Leave&, const Leave&) = default;
};
struct Ready {
  uint64_t request = 0;
  GroupId group{};

  friend bool operator==(const Ready&, const Ready&) = default;
};
struct SetLearningRate {
  uint64_t request = 0;
  double factor = 1;

  friend bool operator==(const SetLearningRate&, const SetLearningRate&) = default;
};
struct CheckpointReport {
  uint64_t step = 0;
  // The path of the checkpoint, or the error if it could not be written.
  absl::StatusOr<std::string> path;

  friend bool operator==(const CheckpointReport&, const CheckpointReport&) = default;
};
using WorkerSignal = std::variant<Hello, Heartbeat, RegisterGroup, EndGroup, Leave, Ready,
                                  CheckpointReport, SetLearningRate>;

// Coordinator to worker.

// The worker is admitted and every server has connected. Sent on each of its streams.
struct Welcome {
  uint32_t protocol_version = kProtocolVersion;
  MemberId member{};
  std::string name;
  // By index. The coordinator's may be empty: it is the address that the worker has used.
  std::vector<std::string> servers;
  absl::Duration heartbeat_interval;
  absl::Duration lease;
  absl::Duration stream_grace;

  friend bool operator==(const Welcome&, const Welcome&) = default;
};
// An epoch begins. It has the names of all members, so all holders share it.
struct EpochBegun {
  std::shared_ptr<const Epoch> epoch;
};
// Answers a registration. A plan can have 100,000 tensors, so all holders share it.
struct Registered {
  uint64_t request = 0;
  std::shared_ptr<const GroupPlan> plan;
};
// Answers a request that has succeeded. If it caused a plan change, every server has applied it.
struct Done {
  uint64_t request = 0;

  friend bool operator==(const Done&, const Done&) = default;
};
// Answers a request that has failed.
struct Refused {
  uint64_t request = 0;
  absl::Status error;

  friend bool operator==(const Refused&, const Refused&) = default;
};
// The reason why the worker has to wait, for people to read. Sent again when it changes.
struct Waiting {
  std::string reason;

  friend bool operator==(const Waiting&, const Waiting&) = default;
};
// The membership is over. The last signal of the stream.
struct Expelled {
  absl::Status reason;

  friend bool operator==(const Expelled&, const Expelled&) = default;
};
// Requests a checkpoint after the current step.
struct CheckpointRequested {
  friend bool operator==(const CheckpointRequested&, const CheckpointRequested&) = default;
};
// Requests that the worker records its events for `length`, and then reports them.
struct TraceRequested {
  uint64_t trace = 0;
  absl::Duration length;

  friend bool operator==(const TraceRequested&, const TraceRequested&) = default;
};
// Only on the coordinator's side: the Done that answers a Leave, and the last signal of the stream.
// It is sent as a Done, and the worker receives a Done.
struct Farewell {
  uint64_t request = 0;

  friend bool operator==(const Farewell&, const Farewell&) = default;
};
struct JobSignal {
  using Kind = std::variant<Welcome, EpochBegun, Registered, Done, Refused, Waiting, Expelled,
                            CheckpointRequested, TraceRequested, Farewell>;

  Generation generation{};
  Kind kind;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SIGNALS_SIGNALS_H_
