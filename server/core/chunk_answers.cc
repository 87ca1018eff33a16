#include "server/core/chunk_answers.h"

#include <utility>

namespace syncgrads::server {

std::shared_ptr<const RoundResult> ChunkAnswers::Result(const RoundRecord& record,
                                                        std::shared_ptr<const Slot> slot,
                                                        Round asked, Round newest,
                                                        std::vector<uint32_t> left_out) const {
  UpdateHeader header = HeaderOf(asked);
  header.epoch = record.epoch;
  header.codec = record.codec;
  header.counts = record.counts;
  header.contributors = record.contributors;
  header.newest_round = newest;
  header.left_out = std::move(left_out);
  auto result = std::make_shared<RoundResult>();
  result->group = group_;
  result->chunk = chunk_;
  result->round = asked;
  result->header = EncodeHeader(header, record.value_bytes);
  result->bare_header = EncodeHeader(header, 0);
  if (slot->arena_offset.has_value() && record.value_bytes > 0) {
    header.shared = {ToNumber(group_), *slot->arena_offset, record.value_bytes};
    result->shared_header = EncodeHeader(header, 0);
  }
  result->payload = slot->values.span().first(record.value_bytes);
  result->slot = std::move(slot);
  return result;
}

std::shared_ptr<const RoundResult> ChunkAnswers::Refusal(Round round,
                                                         const absl::Status& error) const {
  UpdateHeader header = HeaderOf(round);
  header.error = error;
  auto refusal = std::make_shared<RoundResult>();
  refusal->round = round;
  refusal->bare_header = EncodeHeader(header, 0);
  return refusal;
}

UpdateHeader ChunkAnswers::HeaderOf(Round round) const {
  UpdateHeader header;
  header.generation = generation_;
  header.group = group_;
  header.chunk = chunk_;
  header.round = round;
  return header;
}

}  // namespace syncgrads::server
