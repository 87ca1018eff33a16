// Chooses a chunk size by trials on the path that a group is going to use.

#ifndef SYNCGRADS_CLIENT_CHUNK_TRIALS_H_
#define SYNCGRADS_CLIENT_CHUNK_TRIALS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/tuning/tuner.h"
#include "common/group/group.h"

namespace syncgrads::client {

// Chooses the chunk size of `spec`. All members of the job (`options`, `world_size`) call it at the
// same time, each with its rank, and get the same choice.
//
// Each size is tried in a job of its own, "JOB (autotune GROUP N)". The members make some steps of
// a group with the same tensors and compression, and leave. The servers hold one such job at a
// time. A worker temporarily needs additional memory of the size of the group.
//
// `still_member` is called repeatedly; if it returns an error, the trials end with it.
//
// Errors: those of Client's methods. The message of DeadlineExceeded names the members that are
// missing.
absl::StatusOr<ChunkChoice> TuneChunks(const ClientOptions& options, uint32_t rank,
                                       uint32_t world_size, const GroupSpec& spec,
                                       const std::function<absl::Status()>& still_member,
                                       absl::Time deadline);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_CHUNK_TRIALS_H_
