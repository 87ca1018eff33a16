// The record of a closed round: what a state file stores of the round beside its arrays.
//
// A record is vacant or published. It is vacant while its slot is being written. One atomic
// store publishes it, after everything else has been written, including the checksum over
// record and arrays. If the process is killed at any instant, each record is therefore either
// vacant, or published and correct. Anything else is damage.
//
// Each chunk also has one word with its newest round, which is stored after the round has been
// published. If the newest record is missing, the word shows it.
//
// The functions take no lock: the caller owns the slot.

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

// The number of a member's contributions that have been applied to a chunk. Only for policies
// that apply contributions one by one (bounded staleness, async).
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
  // The length of the result, which lies at the beginning of the slot's values.
  uint64_t value_bytes = 0;
  // For each span, the number of contributors.
  std::vector<uint32_t> counts;
  // The ranks whose contributions are in the result, ascending. Empty if the policy applies
  // contributions one by one.
  std::vector<uint32_t> contributors;
  // The codec of the result.
  Codec codec = Codec::kRaw;
  // The members' clocks. Empty unless the policy applies contributions one by one.
  std::vector<MemberClock> clocks;

  friend bool operator==(const RoundRecord&, const RoundRecord&) = default;
};

// Returns the bytes to allocate for a record with at most `spans` spans and at most
// `contributors` contributors or clocks.
size_t RecordBytes(size_t spans, size_t contributors);

// Marks the slot's record vacant. To be called before the slot is written. The slot has a
// record.
void MakeVacant(Slot& slot);

// Publishes `record` in the slot, whose arrays have been written. The slot's record must have
// room for it; see RecordBytes.
void Publish(const RoundRecord& record, Slot& slot);

// Reads and verifies the slot's record, and sets the slot's `updates` and `guard` from it.
// Returns nullopt if the record is vacant.
//
// Errors:
//   DataLoss  the record or an array is damaged; names the round if it is known
absl::StatusOr<std::optional<RoundRecord>> ReadPublished(Slot& slot);

// Decodes a chunk's newest-round word. Returns nullopt if no round was published.
//
// Errors:
//   DataLoss  the word is damaged
absl::StatusOr<std::optional<Round>> NewestPublished(const uint64_t& word);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOT_RECORD_H_
