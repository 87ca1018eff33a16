// Checks the answer to a contribution, and copies its payload to the caller's memory.

#ifndef SYNCGRADS_CLIENT_ROUNDS_CHUNK_ANSWER_H_
#define SYNCGRADS_CLIENT_ROUNDS_CHUNK_ANSWER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/rounds/compressor.h"
#include "client/rounds/contribution.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// An answer, and what keeps its payload alive.
struct ChunkAnswer {
  UpdateFrame update;
  std::shared_ptr<const void> memory;
};

// InvalidArgument if `answer` names no chunk of the group, or its payload is not valid in its
// codec. Reads the whole payload, so no lock should be held.
absl::Status CheckPayload(const GroupPlan& plan, const UpdateFrame& answer,
                          const Compressor& compressor);

// InvalidArgument if `answer`, which names a chunk of the group, does not fit the chunk: its
// counts, its list of contributors and its payload must agree, and the list must ascend strictly. A
// refusal always fits. `without_result`: no payload was requested; the server may send it
// nevertheless. CheckPayload has accepted the answer.
absl::Status CheckAnswer(const GroupPlan& plan, Generation generation, const UpdateFrame& answer,
                         bool without_result, const Compressor& compressor);

// Copies the payload of `answer`, which CheckAnswer has accepted, to `targets`, if there are any.
// If the result stays `in_place`, replaces a payload that is encoded, or has pieces that cut an
// element or are not aligned, by a copy in which all elements are whole; otherwise releases the
// memory.
void Unpack(const Chunk& chunk, absl::Span<const Target> targets, bool in_place,
            const Compressor& compressor, ChunkAnswer& answer);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_ROUNDS_CHUNK_ANSWER_H_
