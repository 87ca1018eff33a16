// A closed round of one chunk, or the refusal of a push: what is sent to members.

#ifndef SYNCGRADS_SERVER_CORE_ROUND_RESULT_H_
#define SYNCGRADS_SERVER_CORE_ROUND_RESULT_H_

#include <memory>
#include <string>

#include "absl/types/span.h"
#include "common/ids.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Immutable once made; one copy serves all members.
struct RoundResult {
  GroupId group{};
  ChunkId chunk{};
  Round round{};
  // The encoded UpdateChunk up to its payload, with and without one.
  std::string header;
  std::string bare_header;
  // The same that says where in the group's arena the payload lies; empty if it
  // does not lie there.
  std::string shared_header;
  // Where the payload lies; null for a refusal.
  std::shared_ptr<const Slot> slot;
  absl::Span<const std::byte> payload;
};

// Where the answers to one member's pushes go: its stream.
//
// Thread-safe. Send only queues; it never blocks or calls back.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void Send(std::shared_ptr<const RoundResult> result, bool with_payload) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUND_RESULT_H_
