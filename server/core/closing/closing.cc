#include "server/core/closing/closing.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "common/aligned_buffer.h"
#include "common/codec/codec.h"
#include "common/kernels/reduce.h"
#include "common/kernels/running_checksum.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "common/wire/encoded_chunk.h"
#include "server/core/closing/decoded_segments.h"
#include "server/core/closing/segments.h"

namespace syncgrads::server {
namespace {

// Elements of a block. The average of one block stays in the first-level cache between the
// reduction and the update.
constexpr uint64_t kUpdateBlock = 2048;
static_assert(kUpdateBlock >= kCodecBlock);

constexpr uint64_t kNoLimit = ~uint64_t{0};

// The checksum of results of at least this size is computed while they are written. Shorter results
// are still in the cache when their slot is published.
constexpr uint64_t kSummedBytes = 256 << 10;

// Concatenates the payloads. Contributions to a gather have no absent spans (see CheckPush).
Closed CloseGather(const Chunk& chunk, absl::Span<const Seated> contributions, Slot& out) {
  Closed closed;
  for (const Seated& seated : contributions) {
    if (seated.contribution->skip) continue;
    closed.contributors.push_back(seated.rank);
    for (absl::Span<const std::byte> piece : seated.contribution->payload.pieces) {
      std::memcpy(out.values.data() + closed.value_bytes, piece.data(), piece.size());
      closed.value_bytes += piece.size();
    }
  }
  closed.counts.assign(chunk.spans.size(), static_cast<uint32_t>(closed.contributors.size()));
  return closed;
}

// Calls ForEachSegment, or ForEachDecodedBlock if contributions may be encoded.
template <typename Segment>
std::vector<uint32_t> ForEachPart(const Chunk& chunk, absl::Span<const Seated> contributions,
                                  uint64_t max_elements, Segment segment) {
  if (chunk.compression.push.is_raw()) {
    return ForEachSegment(chunk, contributions, max_elements, segment);
  }
  return ForEachDecodedBlock(chunk, contributions, segment);
}

// Returns false if `check_finite` is set and the result is not finite. Adds the result to
// `checksum` unless that is null.
bool ReduceTo(std::byte* out, DType dtype, Reduction reduction,
              absl::Span<const WeightedSource> sources, uint64_t elements, bool check_finite,
              RunningChecksum* checksum = nullptr) {
  if (check_finite || checksum != nullptr) {
    return ReduceFinite(dtype, reduction, sources, elements, out, checksum) || !check_finite;
  }
  Reduce(dtype, reduction, sources, elements, out);
  return true;
}

}  // namespace

bool AnybodyContributed(const std::vector<uint32_t>& counts) {
  return std::any_of(counts.begin(), counts.end(), [](uint32_t count) { return count > 0; });
}

size_t ResultBytes(const Chunk& chunk, const UpdateRule& rule, size_t contributions) {
  if (std::holds_alternative<Gather>(rule)) return chunk.bytes() * contributions;
  return MostEncodedBytes(chunk.compression.result, chunk);
}

Closed CloseReduction(const Chunk& chunk, const UpdateRule& rule,
                      absl::Span<const Seated> contributions, Slot& out, bool check_finite) {
  if (std::holds_alternative<Gather>(rule)) return CloseGather(chunk, contributions, out);
  const size_t element_bytes = SizeOf(chunk.dtype);
  const Reduction reduction = std::get<Reduction>(rule);
  std::optional<RunningChecksum> checksum;
  if (!out.record.empty() && chunk.bytes() >= kSummedBytes) checksum.emplace(chunk.bytes());
  RunningChecksum* const sum = checksum.has_value() ? &*checksum : nullptr;
  bool finite = true;
  Closed closed;
  closed.counts = ForEachPart(
      chunk, contributions, kNoLimit,
      [&](absl::Span<const WeightedSource> sources, uint64_t first, uint64_t elements) {
        std::byte* const values = out.values.data() + first * element_bytes;
        if (sources.empty()) {
          std::memset(values, 0, elements * element_bytes);
          if (sum != nullptr) sum->Add(values, elements * element_bytes);
        } else {
          finite &= ReduceTo(values, chunk.dtype, reduction, sources, elements, check_finite, sum);
        }
      });
  closed.finite = finite;
  if (!AnybodyContributed(closed.counts)) return closed;
  closed.value_bytes = chunk.bytes();
  if (sum != nullptr) out.values_checksum = sum->Finish(out.values.data() + chunk.bytes());
  return closed;
}

Closed CloseInitial(const Chunk& chunk, absl::Span<const Seated> contributions, Slot& out) {
  const auto root =
      std::find_if(contributions.begin(), contributions.end(), [](const Seated& seated) {
        return !seated.contribution->skip && seated.contribution->absent_spans.empty();
      });
  Closed closed;
  closed.counts.assign(chunk.spans.size(), 0);
  if (root == contributions.end()) return closed;
  closed.counts.assign(chunk.spans.size(), 1);
  closed.value_bytes = chunk.bytes();
  const Pieces& pieces = root->contribution->payload.pieces;
  PieceCursor payload(&pieces);
  payload.Read(out.values.data(), chunk.bytes());
  if (TotalBytes(pieces) > chunk.bytes()) {
    for (AlignedBuffer& slot : out.optimizer) payload.Read(slot.data(), chunk.bytes());
    payload.Read(reinterpret_cast<std::byte*>(out.updates.data()),
                 out.updates.size() * sizeof(uint64_t));
    return closed;
  }
  for (AlignedBuffer& slot : out.optimizer) std::memset(slot.data(), 0, slot.size());
  std::fill(out.updates.begin(), out.updates.end(), 0);
  return closed;
}

Closed CloseUpdate(const Chunk& chunk, const ScheduledOptimizer& optimizer,
                   absl::Span<const Seated> contributions, const Slot& previous, Slot& out,
                   bool check_finite) {
  const size_t element_bytes = SizeOf(chunk.dtype);
  absl::InlinedVector<const std::byte*, 2> old_slots(out.optimizer.size());
  absl::InlinedVector<std::byte*, 2> new_slots(out.optimizer.size());
  alignas(64) std::byte gradient[kUpdateBlock * 8];
  uint32_t span = 0;  // index of the span that the walk is in
  const auto rule_of = [&](size_t s) {
    return optimizer.After(chunk.spans[s].tensor, previous.updates[s]);
  };
  Optimizer rule = rule_of(span);  // of this span

  // Updates elements of one span only, since each span counts its own updates.
  const auto update = [&](const std::byte* averaged, uint64_t first, uint64_t elements) {
    const size_t offset = first * element_bytes;
    for (size_t i = 0; i < out.optimizer.size(); ++i) {
      old_slots[i] = previous.optimizer[i].data() + offset;
      new_slots[i] = out.optimizer[i].data() + offset;
    }
    ApplyUpdate(rule, chunk.dtype, OneMoreThan(previous.updates[span]), averaged, elements,
                previous.values.data() + offset, out.values.data() + offset, old_slots, new_slots);
  };

  Closed closed;
  bool finite = true;
  closed.value_bytes = chunk.bytes();
  closed.counts = ForEachPart(
      chunk, contributions, kUpdateBlock,
      [&](absl::Span<const WeightedSource> sources, uint64_t first, uint64_t elements) {
        if (sources.empty()) {
          const size_t offset = first * element_bytes;
          const size_t bytes = elements * element_bytes;
          std::memcpy(out.values.data() + offset, previous.values.data() + offset, bytes);
          for (size_t i = 0; i < out.optimizer.size(); ++i) {
            std::memcpy(out.optimizer[i].data() + offset, previous.optimizer[i].data() + offset,
                        bytes);
          }
          return;
        }
        finite &=
            ReduceTo(gradient, chunk.dtype, Reduction::kAverage, sources, elements, check_finite);
        for (uint64_t done = 0; done < elements;) {
          while (first + done >= chunk.spans[span].chunk_offset + chunk.spans[span].elements) {
            rule = rule_of(++span);
          }
          const uint64_t span_end = chunk.spans[span].chunk_offset + chunk.spans[span].elements;
          const uint64_t part = std::min(elements - done, span_end - (first + done));
          update(gradient + done * element_bytes, first + done, part);
          done += part;
        }
      });
  closed.finite = finite;
  for (size_t s = 0; s < chunk.spans.size(); ++s) {
    out.updates[s] = closed.counts[s] > 0 ? OneMoreThan(previous.updates[s]) : previous.updates[s];
  }
  return closed;
}

}  // namespace syncgrads::server
