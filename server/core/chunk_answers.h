// The answers to pushes to one chunk, as they are sent: results of closed rounds, and
// refusals.

#ifndef SYNCGRADS_SERVER_CORE_CHUNK_ANSWERS_H_
#define SYNCGRADS_SERVER_CORE_CHUNK_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/wire/frame.h"
#include "server/core/round_result.h"
#include "server/state/slot_record.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Immutable.
class ChunkAnswers {
 public:
  ChunkAnswers(Generation generation, GroupId group, ChunkId chunk)
      : generation_(generation), group_(group), chunk_(chunk) {}

  // What is sent of a closed round, which lies in `slot`, in answer to a push to
  // `asked`, to those of whose contributions `left_out` was left out. `newest` is named
  // in it unless it is 0.
  std::shared_ptr<const RoundResult> Result(const RoundRecord& record,
                                            std::shared_ptr<const Slot> slot, Round asked,
                                            Round newest = {},
                                            std::vector<uint32_t> left_out = {}) const;
  // The same of a header that the caller has made; the values are sent, wherever they lie.
  std::shared_ptr<RoundResult> Result(const UpdateHeader& header, size_t value_bytes,
                                      std::shared_ptr<const Slot> slot) const;
  // Of a contribution made in epoch `made_in`; 0: of one made in any.
  std::shared_ptr<const RoundResult> Refusal(Round round, const absl::Status& error,
                                             uint64_t made_in = 0) const;

  UpdateHeader HeaderOf(Round round) const;

 private:
  const Generation generation_;
  const GroupId group_;
  const ChunkId chunk_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CHUNK_ANSWERS_H_
