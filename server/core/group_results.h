// Where the results of a group lie on one server: in a file of its state
// directory, in memory that is shared with workers, or in the process's own.

#ifndef SYNCGRADS_SERVER_CORE_GROUP_RESULTS_H_
#define SYNCGRADS_SERVER_CORE_GROUP_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/group.h"
#include "common/ids.h"
#include "server/state/slot_source.h"
#include "server/state/state_directory.h"

namespace syncgrads::server {

struct GroupResults {
  // Null: the process's own memory.
  std::shared_ptr<SlotSource> source;
  // Whether workers on this host gain from mapping it.
  bool shared = false;
};

// For a new group that `members` take part in. `sequence` is the change that
// registered it. `state` may be null: nothing is kept over a crash.
//
// Errors:
//   ResourceExhausted, Unavailable  as StateFile::Create
absl::StatusOr<GroupResults> MakeGroupResults(const GroupPlan& plan, ServerIndex self,
                                              Generation generation, uint64_t sequence,
                                              size_t members, const StateDirectory* state);

// Those that a server that died has left behind.
//
// Errors:
//   NotFound, DataLoss, Unavailable  as StateFile::Open
absl::StatusOr<GroupResults> OpenGroupResults(const GroupPlan& plan, ServerIndex self,
                                              Generation generation, uint64_t sequence,
                                              size_t members, const StateDirectory& state);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_GROUP_RESULTS_H_
