// The memory of a group's results on one server: a file in the state directory, memory that is
// shared with workers, or memory of the process.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_GROUP_RESULTS_H_
#define SYNCGRADS_SERVER_CORE_JOBS_GROUP_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/shm/region.h"
#include "server/state/slot_source.h"
#include "server/state/state_directory.h"

namespace syncgrads::server {

struct GroupResults {
  // Null: the results are in memory of the process.
  std::shared_ptr<SlotSource> source;
  // True if workers on this host should map the results instead of receiving them.
  bool shared = false;
};

// Allocates the memory for the results of a new group in which `members` members take part. `key`
// is unique among the groups of a plan, and names the file. `state` may be null: then results are
// lost in a crash. `progress` may be null; see AllocationProgress.
//
// Errors:
//   ResourceExhausted, Unavailable  the file cannot be created; see StateFile::Create
absl::StatusOr<GroupResults> MakeGroupResults(const GroupPlan& plan, ServerIndex self,
                                              Generation generation, uint64_t key, size_t members,
                                              const StateDirectory* state,
                                              const AllocationProgress& progress = nullptr);

// The number of bytes that a group's results need on this server.
uint64_t BytesOfResults(const GroupPlan& plan, ServerIndex self, size_t members);

// Opens the results that a previous process of this server has left.
//
// Errors:
//   NotFound, DataLoss, Unavailable  the file cannot be opened; see StateFile::Open
absl::StatusOr<GroupResults> OpenGroupResults(const GroupPlan& plan, ServerIndex self,
                                              Generation generation, uint64_t key, size_t members,
                                              const StateDirectory& state);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_GROUP_RESULTS_H_
