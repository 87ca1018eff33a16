// The allocation of a group's memory on the servers, before the group is registered.
//
//   coordinator ── GroupPreparation ──▶ each server, which allocates; in the background if large
//   coordinator ◀── GroupPrepared ───── each server: its progress, and the result
//   coordinator ── the group's plan ──▶ each server, through the plan log, once all are done
//
// Rounds, heartbeats and plan changes of this and other jobs continue meanwhile.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_GROUP_PREPARATION_H_
#define SYNCGRADS_SERVER_CORE_PLAN_GROUP_PREPARATION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/group/group.h"
#include "common/ids.h"

namespace syncgrads::server {

// A request to a server; idempotent.
struct GroupPreparation {
  std::string job;
  Generation generation{};
  // Identifies the memory and its state file. The coordinator chooses it. Its highest bit is
  // set, which distinguishes it from the sequence number of a change.
  uint64_t key = 0;
  // Null: the group will not be registered, and the server frees its memory.
  std::shared_ptr<const GroupPlan> plan;
};

// A server's answer: any number of progress reports, then one that is `done`.
struct GroupPrepared {
  std::string job;
  Generation generation{};
  uint64_t key = 0;
  // Bytes that are allocated so far, and bytes that will be allocated in all.
  uint64_t made = 0;
  uint64_t wanted = 0;
  bool done = false;
  // If `done`: not OK if the memory could not be allocated.
  absl::Status error;
};

// Smaller memory is allocated at once, within a millisecond, on the thread that applies the plan.
inline constexpr uint64_t kMinBackgroundBytes = uint64_t{4} << 20;

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_GROUP_PREPARATION_H_
