#include "server/core/rounds/chunk_answers.h"

#include <optional>
#include <utility>

#include "common/planted_bug.h"

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
  const std::optional<uint64_t> offset = slot->arena_offset;
  std::shared_ptr<RoundResult> result = Result(header, record.value_bytes, std::move(slot));
  if (offset.has_value() && record.value_bytes > 0) {
    header.shared = {ToNumber(group_), *offset, record.value_bytes};
    result->shared_header = EncodeHeader(header, 0);
  }
  return result;
}

std::shared_ptr<RoundResult> ChunkAnswers::Result(const UpdateHeader& header, size_t value_bytes,
                                                  std::shared_ptr<const Slot> slot) const {
  auto result = std::make_shared<RoundResult>();
  result->group = group_;
  result->chunk = chunk_;
  result->round = header.round;
  result->header = EncodeHeader(header, value_bytes);
  result->bare_header = EncodeHeader(header, 0);
  result->codec = header.codec;
  result->payload = slot->values.span().first(value_bytes);
  if (!IsPlanted(PlantedBug::kSlotReusedUnderAReader)) result->slot = std::move(slot);
  return result;
}

std::shared_ptr<const RoundResult> ChunkAnswers::Refusal(Round round, const absl::Status& error,
                                                         uint64_t made_in) const {
  UpdateHeader header = HeaderOf(round);
  header.epoch = made_in;
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
