// The answer to pushes: the result of a closed round of one chunk, or a refusal.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_RESULT_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_RESULT_H_

#include <memory>
#include <string>

#include "absl/types/span.h"
#include "common/codec/encoding.h"
#include "common/ids.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Immutable once built. One object is shared by all members that it is sent to. A refusal has only
// `round` and `bare_header`.
struct RoundResult {
  GroupId group{};
  ChunkId chunk{};
  Round round{};
  // The encoded UpdateChunk up to its payload: `header` for a message with a payload, `bare_header`
  // for one without.
  std::string header;
  std::string bare_header;
  // The encoded UpdateChunk that names the payload's place in the group's shared memory; empty if
  // the payload does not lie there.
  std::string shared_header;
  // Owns the payload's memory; null for a refusal.
  std::shared_ptr<const Slot> slot;
  absl::Span<const std::byte> payload;
  Codec codec = Codec::kRaw;  // of the payload
};

// The stream on which the answers to one member's pushes are sent.
//
// Thread-safe. Send only queues the answer; it neither blocks nor calls back. Chunks call it
// without their lock.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void Send(std::shared_ptr<const RoundResult> result, bool with_payload) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_ROUND_RESULT_H_
