#include "server/state/slot_record.h"

#include <atomic>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "server/state/checksum.h"

// The layout of a record, in the machine's own byte order:
//
//   u64 state      kVacant or kPublished
//   u64 checksum   of the values, then of all that follows here, then of each of the
//                  optimizer's arrays and of the residual
//   Fixed
//   u64 updates[updates]
//   u32 counts[counts]
//   u32 contributors[contributors]
//   (u64 clock, u32 member)[clocks]

namespace syncgrads::server {
namespace {

constexpr uint64_t kVacant = 0;
constexpr uint64_t kPublished = 0x64656c6961746e65;  // differs from kVacant in many bits

struct Fixed {
  uint64_t generation;
  uint64_t round;
  uint64_t epoch;
  uint64_t value_bytes;
  uint32_t group;
  uint32_t chunk;
  uint32_t updates;
  uint32_t counts;
  uint32_t contributors;
  uint32_t codec;
  ResidualGuard guard;
  uint32_t clocks;
  uint32_t reserved;
};
static_assert(sizeof(Fixed) == 88);
static_assert(std::is_trivially_copyable_v<ResidualGuard>);

constexpr size_t kFixedAt = 16;
constexpr size_t kListsAt = kFixedAt + sizeof(Fixed);

// A newest-round word has 16 bits of a checksum, then 48 bits with the round's number plus 1.
constexpr int kRoundBits = 48;
constexpr uint64_t kRoundMask = (uint64_t{1} << kRoundBits) - 1;

uint64_t& Word(const Slot& slot, size_t index) {
  return reinterpret_cast<uint64_t*>(slot.record.data())[index];
}

uint64_t ChecksumOf(const Slot& slot, size_t record_bytes, uint64_t values) {
  uint64_t sum = Checksum(slot.record.data() + kFixedAt, record_bytes - kFixedAt, values);
  for (const AlignedBuffer& array : slot.optimizer) {
    sum = Checksum(array.data(), array.size(), sum);
  }
  if (slot.residual.size() > 0) sum = Checksum(slot.residual.data(), slot.residual.size(), sum);
  return sum;
}

uint64_t WordOf(Round round) {
  const uint64_t number = (ToNumber(round) + 1) & kRoundMask;
  return Checksum(&number, sizeof(number)) << kRoundBits | number;
}

size_t BytesOf(const Fixed& fixed) {
  return kListsAt + size_t{8} * fixed.updates + size_t{4} * fixed.counts +
         size_t{4} * fixed.contributors + size_t{12} * fixed.clocks;
}

}  // namespace

size_t RecordBytes(size_t spans, size_t contributors) {
  const size_t bytes = kListsAt + 12 * spans + 16 * contributors;
  return (bytes + 63) / 64 * 64;
}

void MakeVacant(Slot& slot) {
  slot.values_checksum.reset();
  // The record must be vacant before any new contents are written. Later writes cannot be
  // reordered before an exchange; before a plain store they can.
  std::atomic_ref<uint64_t>(Word(slot, 0)).exchange(kVacant, std::memory_order_seq_cst);
}

void Publish(const RoundRecord& record, Slot& slot) {
  Fixed fixed = {};
  fixed.codec = static_cast<uint32_t>(record.codec);
  fixed.guard = slot.guard;
  fixed.generation = ToNumber(record.generation);
  fixed.round = ToNumber(record.round);
  fixed.epoch = record.epoch;
  fixed.value_bytes = record.value_bytes;
  fixed.group = ToNumber(record.group);
  fixed.chunk = ToNumber(record.chunk);
  fixed.updates = static_cast<uint32_t>(slot.updates.size());
  fixed.counts = static_cast<uint32_t>(record.counts.size());
  fixed.contributors = static_cast<uint32_t>(record.contributors.size());
  fixed.clocks = static_cast<uint32_t>(record.clocks.size());
  std::memcpy(slot.record.data() + kFixedAt, &fixed, sizeof(fixed));
  std::byte* out = slot.record.data() + kListsAt;
  const auto write = [&out](const auto& list) {
    if (list.empty()) return;
    std::memcpy(out, list.data(), list.size() * sizeof(list[0]));
    out += list.size() * sizeof(list[0]);
  };
  write(slot.updates);
  write(record.counts);
  write(record.contributors);
  for (const MemberClock& one : record.clocks) {
    const uint32_t member = ToNumber(one.member);
    const uint64_t clock = ToNumber(one.clock);
    std::memcpy(out, &clock, sizeof(clock));
    std::memcpy(out + sizeof(clock), &member, sizeof(member));
    out += sizeof(clock) + sizeof(member);
  }
  const uint64_t values = slot.values_checksum.has_value()
                              ? *slot.values_checksum
                              : Checksum(slot.values.data(), record.value_bytes);
  Word(slot, 1) = ChecksumOf(slot, BytesOf(fixed), values);
  std::atomic_ref<uint64_t>(Word(slot, 0)).store(kPublished, std::memory_order_release);
  std::atomic_ref<uint64_t>(*slot.newest).store(WordOf(record.round), std::memory_order_release);
}

absl::StatusOr<std::optional<RoundRecord>> ReadPublished(Slot& slot) {
  const uint64_t state = Word(slot, 0);
  if (state == kVacant) return std::optional<RoundRecord>();
  if (state != kPublished) {
    return absl::DataLossError(
        absl::StrCat("a record is neither vacant nor published, but ", absl::Hex(state)));
  }
  Fixed fixed;
  std::memcpy(&fixed, slot.record.data() + kFixedAt, sizeof(fixed));
  const size_t bytes = BytesOf(fixed);
  if (bytes > slot.record.size() || fixed.value_bytes > slot.values.size()) {
    return absl::DataLossError(absl::StrCat("a record of ", bytes, " bytes and values of ",
                                            fixed.value_bytes, " where there is space for ",
                                            slot.record.size(), " and ", slot.values.size()));
  }
  const uint64_t found = ChecksumOf(slot, bytes, Checksum(slot.values.data(), fixed.value_bytes));
  if (found != Word(slot, 1)) {
    return absl::DataLossError(
        absl::StrCat("round ", fixed.round, " has checksum ", absl::Hex(found, absl::kZeroPad16),
                     ", its record has checksum ", absl::Hex(Word(slot, 1), absl::kZeroPad16)));
  }
  RoundRecord record;
  record.generation = Generation{fixed.generation};
  record.group = GroupId{fixed.group};
  record.chunk = ChunkId{fixed.chunk};
  record.round = Round{fixed.round};
  record.epoch = fixed.epoch;
  record.value_bytes = fixed.value_bytes;
  record.codec = Codec{fixed.codec};
  slot.guard = fixed.guard;
  const std::byte* in = slot.record.data() + kListsAt;
  const auto read = [&in](auto& list, size_t size) {
    list.resize(size);
    if (size == 0) return;
    std::memcpy(list.data(), in, size * sizeof(list[0]));
    in += size * sizeof(list[0]);
  };
  read(slot.updates, fixed.updates);
  read(record.counts, fixed.counts);
  read(record.contributors, fixed.contributors);
  for (uint32_t i = 0; i < fixed.clocks; ++i) {
    uint64_t clock;
    uint32_t member;
    std::memcpy(&clock, in, sizeof(clock));
    std::memcpy(&member, in + sizeof(clock), sizeof(member));
    record.clocks.push_back({MemberId{member}, Round{clock}});
    in += sizeof(clock) + sizeof(member);
  }
  return std::optional<RoundRecord>(std::move(record));
}

absl::StatusOr<std::optional<Round>> NewestPublished(const uint64_t& word) {
  if (word == 0) return std::optional<Round>();
  const Round round{(word & kRoundMask) - 1};
  if ((word & kRoundMask) == 0 || WordOf(round) != word) {
    return absl::DataLossError(
        absl::StrCat("the newest-round word ", absl::Hex(word), " is invalid"));
  }
  return std::optional<Round>(round);
}

}  // namespace syncgrads::server
