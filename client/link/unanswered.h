// The contributions that a link has taken and that the server has not answered.

#ifndef SYNCGRADS_CLIENT_LINK_UNANSWERED_H_
#define SYNCGRADS_CLIENT_LINK_UNANSWERED_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "client/link/outbox.h"
#include "client/link/transport.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Identifies a stream of a link. The first is 1.
using StreamNumber = uint64_t;

struct UnansweredContribution {
  std::shared_ptr<const OutgoingMessage> message;
  uint64_t made_in = 0;     // the epoch that the contribution was made in
  uint64_t sequence = 0;    // the number of contributions that were added before it
  StreamNumber stream = 0;  // the stream it was sent on; 0: queued or postponed
};

// A contribution is queued, sent on a stream, or postponed. Chunks at the front of the layout are
// sent first, and the contributions of one chunk in the order in which they were added.
//
// Not thread-safe. The destruction of a message calls its owner. Therefore messages are returned
// instead of destroyed, for callers to release when they hold no lock.
class Unanswered {
 public:
  using Message = std::shared_ptr<const OutgoingMessage>;

  // Queues a contribution that was made in epoch `made_in`. Returns the message that it replaces.
  [[nodiscard]] Message Add(const ChunkKey& key, uint64_t made_in, Message message);
  // Removes a contribution. Returns its message; null if there is none.
  [[nodiscard]] Message Forget(const ChunkKey& key);
  [[nodiscard]] std::vector<Message> Clear();

  // Returns the message that is to be sent next; null if none is queued.
  Message Next() const;
  // Marks the message that Next returns as sent on `stream`.
  void MarkSent(StreamNumber stream);
  // Queues what was sent on `stream` again, after `change` has been applied to each message.
  void Requeue(StreamNumber stream, absl::FunctionRef<void(Message&)> change);

  enum class Outcome {
    kIgnored,    // the answer is to an earlier attempt, or was received before
    kPostponed,  // the server asks for another attempt; Resume queues the contribution again
    kAnswered,   // the contribution has been removed
  };
  // Applies an answer of the server. An answered contribution is moved to `answered`.
  Outcome Answer(const ChunkKey& key, const UpdateHeader& header, UnansweredContribution& answered);
  // Queues a postponed contribution again. Returns false if it is no longer postponed.
  bool Resume(const ChunkKey& key);
  // Queues an answered contribution again, at its former place. Does nothing if the same one has
  // been added since.
  void Restore(const ChunkKey& key, UnansweredContribution& answered);

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // chunk, sequence
  static Place PlaceOf(const ChunkKey& key, const UnansweredContribution& contribution) {
    return {ToNumber(key.chunk), contribution.sequence};
  }
  void Enqueue(const ChunkKey& key, UnansweredContribution& contribution);

  std::map<ChunkKey, UnansweredContribution> contributions_;
  std::map<Place, ChunkKey> queue_;
  uint64_t next_sequence_ = 0;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_LINK_UNANSWERED_H_
