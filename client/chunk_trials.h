// Chunk sizes, tried on the path that a group is going to take.

#ifndef SYNCGRADS_CLIENT_CHUNK_TRIALS_H_
#define SYNCGRADS_CLIENT_CHUNK_TRIALS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/tuner.h"
#include "common/group.h"

namespace syncgrads::client {

// Chooses a size for the chunks of `spec`. All members of the job that `options` joins
// as one of `world_size` call this at the same time, each with its rank, and get the
// same choice.
//
// Each size is tried in a job of its own, "JOB (autotune GROUP N)", in which the members make
// some steps of a group with the same tensors and compression, and which then ends: the
// servers hold one of them at a time. A worker has as much memory again as the group has
// bytes meanwhile.
//
// `still_member` is asked now and then; what it says when it is not OK ends the trials.
//
// Errors: as Client's; DeadlineExceeded names who has not come.
absl::StatusOr<ChunkChoice> TuneChunks(const ClientOptions& options, uint32_t rank,
                                       uint32_t world_size, const GroupSpec& spec,
                                       const std::function<absl::Status()>& still_member,
                                       absl::Time deadline);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_CHUNK_TRIALS_H_
