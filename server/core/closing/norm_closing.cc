#include "server/core/closing/norm_closing.h"

#include <cstring>

#include "absl/container/inlined_vector.h"
#include "common/kernels/sum_of_squares.h"

namespace syncgrads::server {
namespace {

// Returns the address at byte `offset` in each of the optimizer's slots.
absl::InlinedVector<const std::byte*, 2> SlotsAt(const Slot& slot, size_t offset) {
  absl::InlinedVector<const std::byte*, 2> slots;
  for (const AlignedBuffer& one : slot.optimizer) slots.push_back(one.data() + offset);
  return slots;
}

}  // namespace

Closed AverageGradients(const Chunk& chunk, absl::Span<const Seated> contributions, Slot& out,
                        bool check_finite) {
  Closed closed = CloseReduction(chunk, Reduction::kAverage, contributions, out, check_finite);
  // CloseReduction has set these for the gradients. The slot will hold the parameters: their
  // checksum is not known yet, and their length is that of the chunk.
  out.values_checksum.reset();
  closed.value_bytes = chunk.bytes();
  return closed;
}

std::vector<SquareSums> SumSpans(const Chunk& chunk, const ScheduledOptimizer& optimizer,
                                 NormStage stage, absl::Span<const uint32_t> counts,
                                 const Slot& previous, const Slot& averaged) {
  std::vector<SquareSums> sums(chunk.spans.size());
  for (size_t s = 0; s < chunk.spans.size(); ++s) {
    if (counts[s] == 0) continue;
    const Span& span = chunk.spans[s];
    const size_t offset = span.chunk_offset * SizeOf(chunk.dtype);
    const std::byte* const gradient = averaged.values.data() + offset;
    if (stage == NormStage::kGradient) {
      sums[s].change = SumOfSquares(chunk.dtype, gradient, span.elements);
    } else {
      const uint64_t updates = previous.updates[s];
      sums[s] = SumSquares(optimizer.After(span.tensor, updates), chunk.dtype, OneMoreThan(updates),
                           gradient, span.elements, previous.values.data() + offset,
                           SlotsAt(previous, offset));
    }
  }
  return sums;
}

void ScaleGradients(const Chunk& chunk, double factor, Slot& averaged) {
  if (factor != 1) Scale(chunk.dtype, factor, averaged.values.data(), chunk.elements);
}

void ApplyAveraged(const Chunk& chunk, const ScheduledOptimizer& optimizer,
                   absl::Span<const uint32_t> counts, absl::Span<const double> ratios,
                   const Slot& previous, Slot& out) {
  for (size_t s = 0; s < chunk.spans.size(); ++s) {
    const Span& span = chunk.spans[s];
    const size_t offset = span.chunk_offset * SizeOf(chunk.dtype);
    const size_t bytes = span.elements * SizeOf(chunk.dtype);
    std::byte* const values = out.values.data() + offset;
    out.updates[s] = counts[s] > 0 ? OneMoreThan(previous.updates[s]) : previous.updates[s];
    if (counts[s] == 0) {
      std::memcpy(values, previous.values.data() + offset, bytes);
      for (size_t i = 0; i < out.optimizer.size(); ++i) {
        std::memcpy(out.optimizer[i].data() + offset, previous.optimizer[i].data() + offset, bytes);
      }
      continue;
    }
    absl::InlinedVector<std::byte*, 2> new_slots;
    for (AlignedBuffer& slot : out.optimizer) new_slots.push_back(slot.data() + offset);
    ApplyUpdate(optimizer.After(span.tensor, previous.updates[s]), chunk.dtype, out.updates[s],
                values, span.elements, previous.values.data() + offset, values,
                SlotsAt(previous, offset), absl::MakeSpan(new_slots),
                ratios.empty() ? 1 : ratios[ToNumber(span.tensor)]);
  }
}

}  // namespace syncgrads::server
