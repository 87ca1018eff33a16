// What is kept of a closed round beside its arrays, in the file that they lie in.
//
// A record is vacant or published. It is vacant while its slot is written, and is
// published by one store after everything else, the checksum over record and
// arrays included. A process that is killed at any instant therefore leaves only
// vacant records, and published ones that are right; anything else is damage.
//
// Beside the records, each chunk has one word with its newest round, stored right
// after the round was published: a newest record that has vanished is noticed.

#ifndef SYNCGRADS_SERVER_STATE_SLOT_RECORD_H_
#define SYNCGRADS_SERVER_STATE_SLOT_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/codec/encoding.h"
#include "common/ids.h"
#include "server/state/slot.h"

namespace syncgrads::server {

// How many of a member's contributions have been applied.
struct MemberClock {
  MemberId member{};
  Round clock{};

  friend bool operator==(const MemberClock&, const MemberClock&) = default;
};

struct RoundRecord {
  Generation generation{};
  GroupId group{};
  ChunkId chunk{};
  Round round{};
  uint64_t epoch = 0;
  // Bytes of the slot's values that are the result.
  uint64_t value_bytes = 0;
  // Contributors of each span.
  std::vector<uint32_t> counts;
  // Gather: the ranks that the result is made of.
  std::vector<uint32_t> contributors;
  // Of the result.
  Codec codec = Codec::kRaw;
  // Where contributions are applied one by one: at most as many as there is room for
  // contributors.
  std::vector<MemberClock> clocks;

  friend bool operator==(const RoundRecord&, const RoundRecord&) = default;
};

// The room that a record takes at most.
size_t RecordBytes(size_t spans, size_t contributors);

// The slot is about to be written.
void MakeVacant(Slot& slot);

// The slot has been written, and holds this round from now on. The record fits.
void Publish(const RoundRecord& record, Slot& slot);

// What the slot holds, its `updates` and its `guard` with it; nothing if it is vacant.
//
// Errors:
//   DataLoss  the record or an array is damaged; says which round, where known
absl::StatusOr<std::optional<RoundRecord>> ReadPublished(Slot& slot);

// The chunk's newest round as its word has it; nothing if none was published.
//
// Errors:
//   DataLoss  the word is damaged
absl::StatusOr<std::optional<Round>> NewestPublished(const uint64_t& word);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOT_RECORD_H_
