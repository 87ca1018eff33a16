// Builds the answers to pushes to one chunk: results of closed rounds, and refusals.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_CHUNK_ANSWERS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_CHUNK_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/rounds/round_result.h"
#include "server/state/slot_record.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Immutable. The chunk owns it.
class ChunkAnswers {
 public:
  ChunkAnswers(Generation generation, GroupId group, ChunkId chunk)
      : generation_(generation), group_(group), chunk_(chunk) {}

  // Answers a push to round `asked` with the closed round that `record` describes and whose values
  // are in `slot`. The answer names `newest` as the newest round unless it is 0. `left_out` are the
  // spans of the receiver's contribution that were not counted.
  std::shared_ptr<const RoundResult> Result(const RoundRecord& record,
                                            std::shared_ptr<const Slot> slot, Round asked,
                                            Round newest = {},
                                            std::vector<uint32_t> left_out = {}) const;
  // Answers with a header that the caller has built, and with the first `value_bytes` of the slot's
  // values, which are sent in the message even if they lie in shared memory.
  std::shared_ptr<RoundResult> Result(const UpdateHeader& header, size_t value_bytes,
                                      std::shared_ptr<const Slot> slot) const;
  // Refuses a push to `round` with `error`. `made_in` is the epoch in which the contribution was
  // made; 0: the refusal applies whatever the epoch.
  std::shared_ptr<const RoundResult> Refusal(Round round, const absl::Status& error,
                                             uint64_t made_in = 0) const;

  UpdateHeader HeaderOf(Round round) const;

 private:
  const Generation generation_;
  const GroupId group_;
  const ChunkId chunk_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_CHUNK_ANSWERS_H_
