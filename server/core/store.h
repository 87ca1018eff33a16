// What a server must not forget, kept over a crash.

#ifndef SYNCGRADS_SERVER_CORE_STORE_H_
#define SYNCGRADS_SERVER_CORE_STORE_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "server/core/introduction.h"
#include "server/core/plan_change.h"

namespace syncgrads::server {

// The coordinator has let a worker in, under this name.
struct MemberAdmitted {
  Introduction introduction;
  Generation generation{};
  MemberId member{};
  std::string name;
};
// A worker that was admitted has gone before any epoch had it.
struct MemberWithdrawn {
  std::string job;
  Generation generation{};
  MemberId member{};
};
// A member of an elastic job has said that it could give its state.
struct MemberReady {
  std::string job;
  Generation generation{};
  MemberId member{};
  GroupId group{};
};
// The coordinator has heard of a server for the first time.
struct ServerSeen {
  ServerIndex server{};
  std::string address;
  Incarnation incarnation{};
};

using Stored = std::variant<PlanChange, MemberAdmitted, MemberWithdrawn, MemberReady, ServerSeen>;

// Where a plan stood when nothing before it was needed any more.
struct PlanStart {
  // Drawn by the coordinator when it begins to count changes: those of another
  // plan are not taken for these.
  uint64_t plan = 0;
  // Of the server as the coordinator knows it: the same for as long as the server
  // keeps what it has applied.
  Incarnation incarnation{};
  // The newest change that was applied.
  uint64_t applied = 0;
  bool all_done = false;
  // The coordinator's: the newest generation of each job, and the other servers.
  std::map<std::string, Generation> generations;
  std::vector<ServerSeen> servers;
};

// Not thread-safe; of each server, one caller at a time.
class Store {
 public:
  virtual ~Store() = default;

  // Once this has returned OK, the record outlives the process. After an error
  // nothing that depends on it may be said or done.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  it cannot be stored
  virtual absl::Status Append(const Stored& record) = 0;

  // Forgets all records.
  virtual absl::Status StartAfresh(const PlanStart& start) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_STORE_H_
