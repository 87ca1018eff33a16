// The pushes that arrive while a chunk's result is computed.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_QUEUED_PUSHES_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_QUEUED_PUSHES_H_

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/closing/payload.h"
#include "server/core/rounds/round_result.h"

namespace syncgrads::server {

// At most one push of each member: a member that repeats its push takes no further memory.
//
// Not thread-safe; protected by the lock of its chunk.
class QueuedPushes {
 public:
  struct Push {
    PushHeader header;
    Payload payload;
    std::shared_ptr<AnswerSink> sink;
  };

  // Queues a push. If one of the same member and round, made in the same epoch, is queued, this one
  // is a retry: only `sink` is kept, beside the earlier one.
  //
  // Errors:
  //   Unavailable  another push of the member is queued. `sink` is left to the caller
  absl::Status Add(const PushHeader& header, Payload payload, std::shared_ptr<AnswerSink>& sink);
  // Returns the pushes in the order in which they arrived, and removes them.
  std::vector<Push> Take();

 private:
  std::vector<Push> pushes_;
  // The index of each member's push.
  std::map<MemberId, size_t> index_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_QUEUED_PUSHES_H_
