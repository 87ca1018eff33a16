// Gathers what each worker has computed for its shards.

#ifndef SYNCGRADS_WORKER_TEAM_GATHER_SHARDS_H_
#define SYNCGRADS_WORKER_TEAM_GATHER_SHARDS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/team/team.h"

namespace syncgrads {

// Returns the bytes of all workers' shards, by the number of the shard. `ours` has those of this
// worker's shards. If several workers have a shard, the bytes are those of the last of them. A
// collective.
//
// Errors:
//   DataLoss  another worker's message is malformed; the error has `name`
//   others    those of Team::Gather
absl::StatusOr<std::map<uint64_t, std::string>> GatherShards(
    absl::string_view name, const std::map<uint64_t, std::string>& ours, Team& team);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TEAM_GATHER_SHARDS_H_
