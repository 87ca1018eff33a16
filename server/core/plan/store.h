// The records that must survive a crash of a server.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_STORE_H_
#define SYNCGRADS_SERVER_CORE_PLAN_STORE_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/signals/signals.h"
#include "server/core/plan/plan_change.h"

namespace syncgrads::server {

// The coordinator has admitted a worker under this name. The secrets in `hello` are hashes.
struct MemberAdmitted {
  Hello hello;
  Generation generation{};
  MemberId member{};
  std::string name;
  // See MemberLink::shares_memory.
  bool shares_memory = false;
};
// An admitted worker has gone before it was in any epoch.
struct MemberWithdrawn {
  std::string job;
  Generation generation{};
  MemberId member{};
};
// Elastic jobs only: a member has reported that it can send its state to newcomers.
struct MemberReady {
  std::string job;
  Generation generation{};
  MemberId member{};
  GroupId group{};
};
// The eviction of the worker of this name was lifted.
struct WorkerReadmitted {
  std::string job;
  Generation generation{};
  std::string worker;
};
// The job's learning rate factor was set. The next epoch has it.
struct LearningRateSet {
  std::string job;
  Generation generation{};
  double factor = 1;
};
// A server has connected to the coordinator, with an address and an incarnation.
struct ServerSeen {
  ServerIndex server{};
  std::string address;
  Incarnation incarnation{};
};

using Stored = std::variant<PlanChange, MemberAdmitted, MemberWithdrawn, MemberReady,
                            WorkerReadmitted, LearningRateSet, ServerSeen>;

// The position of a plan: everything that is still needed of the changes before it.
struct PlanStart {
  // Identifies the plan. The coordinator draws it at random when it starts without state, so
  // that changes of different plans are not confused.
  uint64_t plan = 0;
  // The incarnation that the server reports to its coordinator. It stays the same as long as the
  // server keeps its applied changes.
  Incarnation incarnation{};
  // The number of the newest change that was applied.
  uint64_t applied = 0;
  // The coordinator has closed a job and has no other.
  bool all_done = false;
  // Coordinator only: the newest generation of each job, and the other servers.
  std::map<std::string, Generation> generations;
  std::vector<ServerSeen> servers;
};

// A server's durable records. Not thread-safe: each server's store has one caller at a time. On
// server 0 this is the Coordinator, which calls it while Coordinator::mutex_ is held. On the
// other servers it is Jobs.
class Store {
 public:
  virtual ~Store() = default;

  // Stores a record. Once this has returned OK, the record survives the process. After an error,
  // no part of the record is stored, the caller must not send or do anything that depends on
  // it, and other records can still be appended. Space is reserved for records that end
  // something: JobClosed and MemberWithdrawn. Writes to the disk.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  the record cannot be stored
  virtual absl::Status Append(const Stored& record) = 0;

  // No member of this closed job can reconnect any more, so its records may be removed.
  virtual void Forget(const std::string& /*job*/, Generation /*generation*/) {}

  // Replaces all records by `start`.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  `start` cannot be stored; the old records are kept
  virtual absl::Status Reset(const PlanStart& start) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_STORE_H_
