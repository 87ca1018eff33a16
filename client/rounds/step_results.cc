#include "client/rounds/step_results.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads::client {
namespace {

// Appends `bytes` bytes of `from`, starting at `offset`, to `to`. Pieces that are adjacent in
// memory are merged.
void AppendRange(const Pieces& from, size_t offset, size_t bytes,
                 std::vector<absl::Span<const std::byte>>& to) {
  for (absl::Span<const std::byte> piece : from) {
    const size_t skipped = std::min(offset, piece.size());
    offset -= skipped;
    piece = piece.subspan(skipped, bytes);
    bytes -= piece.size();
    if (piece.empty()) continue;
    if (!to.empty() && to.back().data() + to.back().size() == piece.data()) {
      to.back() = absl::MakeConstSpan(to.back().data(), to.back().size() + piece.size());
    } else {
      to.push_back(piece);
    }
  }
}

}  // namespace

StepResults::StepResults(const GroupPlan& plan)
    : plan_(plan), chunks_(plan.layout.chunks().size()) {}

bool StepResults::holds_parameters() const {
  return std::holds_alternative<Optimizer>(plan_.spec.rule);
}

void StepResults::Set(UpdateFrame answer, bool in_place, std::shared_ptr<const void> memory,
                      std::shared_ptr<const MappedResults> mapped) {
  UpdateHeader& header = answer.header;
  ChunkResult& result = chunks_[ToNumber(header.chunk)];
  result.epoch = header.epoch;
  result.newest = header.newest_round;
  result.counts = std::move(header.counts);
  result.contributors = std::move(header.contributors);
  result.left_out = std::move(header.left_out);
  if (!in_place) return;
  result.in_place = Kept{std::move(answer.payload), std::move(memory), std::move(mapped)};
}

void StepResults::SetCopied(UpdateFrame answer, std::vector<Target> targets) {
  const ChunkId chunk = answer.header.chunk;
  Set(std::move(answer), /*in_place=*/false, nullptr, nullptr);
  chunks_[ToNumber(chunk)].copied = std::move(targets);
}

std::shared_ptr<const void> StepResults::Clear(ChunkId chunk) {
  ChunkResult& result = chunks_[ToNumber(chunk)];
  std::shared_ptr<const void> memory;
  if (result.in_place.has_value()) memory = std::move(result.in_place->memory);
  result = ChunkResult();
  return memory;
}

Contributors StepResults::Count(TensorId tensor, absl::Span<std::byte> buffer) const {
  const Layout::ChunkRange range = plan_.layout.ChunksOf(tensor);
  Contributors contributors{UINT32_MAX, 0};
  for (int pass = 0; pass < 2; ++pass) {
    for (uint32_t c = range.first; c < range.first + range.count; ++c) {
      const Chunk& chunk = plan_.layout.chunk(ChunkId{c});
      const ChunkResult& result = chunks_[c];
      const size_t s = chunk.SpanOf(tensor);
      if (s >= result.counts.size()) continue;
      const uint32_t count = result.counts[s];
      if (pass == 0) {
        contributors.left_out |=
            std::binary_search(result.left_out.begin(), result.left_out.end(), s);
        contributors.least = std::min(contributors.least, count);
        contributors.most = std::max(contributors.most, count);
        continue;
      }
      if (count > 0 || buffer.empty()) continue;
      const Span& span = chunk.spans[s];
      const size_t element = SizeOf(chunk.dtype);
      std::memset(buffer.data() + span.tensor_offset * element, 0, span.elements * element);
    }
    if (contributors.least > contributors.most) return {};
    const bool in_part = contributors.least == 0 && contributors.most > 0;
    const bool gathers = std::holds_alternative<Gather>(plan_.spec.rule);
    if (!in_part || holds_parameters() || gathers) break;
  }
  return contributors;
}

const std::byte* StepResults::Zeros() {
  if (zeros_.empty()) {
    for (const Chunk& chunk : plan_.layout.chunks()) {
      if (chunk.bytes() > zeros_.size()) zeros_.resize(chunk.bytes());
    }
  }
  return zeros_.data();
}

absl::StatusOr<std::vector<absl::Span<const std::byte>>> StepResults::InPlace(TensorId tensor) {
  std::vector<absl::Span<const std::byte>> pieces;
  bool anybody = false;
  const Layout::ChunkRange range = plan_.layout.ChunksOf(tensor);
  for (uint32_t c = range.first; c < range.first + range.count; ++c) {
    const ChunkResult& result = chunks_[c];
    const Chunk& chunk = plan_.layout.chunk(ChunkId{c});
    const size_t s = chunk.SpanOf(tensor);
    const bool present = (s < result.counts.size() && result.counts[s] > 0) || holds_parameters();
    const bool is_copied = !result.copied.empty();
    const bool has_copy = is_copied && (!present || result.copied[s].to != nullptr);
    if (!result.in_place.has_value() && !has_copy) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor \"", plan_.layout.tensor(tensor).name, "\" of group \"", plan_.spec.name,
          "\" has no result in place: push it with InPlace, and wait for it"));
    }
    const size_t element = SizeOf(chunk.dtype);
    const Span& span = chunk.spans[s];
    const size_t bytes = span.elements * element;
    anybody = anybody || present;
    if (present && is_copied) {
      AppendRange({absl::MakeConstSpan(result.copied[s].to, bytes)}, 0, bytes, pieces);
    } else if (present) {
      AppendRange(result.in_place->payload, span.chunk_offset * element, bytes, pieces);
    } else {
      pieces.push_back(absl::MakeConstSpan(Zeros(), bytes));
    }
  }
  if (!anybody) pieces.clear();
  return pieces;
}

std::shared_ptr<const MappedResults> StepResults::MappingOf(TensorId tensor) const {
  const Layout::ChunkRange range = plan_.layout.ChunksOf(tensor);
  const std::optional<Kept>& first = chunks_[range.first].in_place;
  for (uint32_t c = range.first; c < range.first + range.count; ++c) {
    const std::optional<Kept>& kept = chunks_[c].in_place;
    if (!kept.has_value() || kept->mapped != first->mapped) return nullptr;
  }
  return first.has_value() ? first->mapped : nullptr;
}

std::vector<std::shared_ptr<const MappedResults>> StepResults::FindMapped() const {
  std::vector<std::shared_ptr<const MappedResults>> all;
  for (const ChunkResult& chunk : chunks_) {
    if (!chunk.in_place.has_value() || chunk.in_place->mapped == nullptr) continue;
    if (std::find(all.begin(), all.end(), chunk.in_place->mapped) != all.end()) continue;
    all.push_back(chunk.in_place->mapped);
  }
  return all;
}

absl::StatusOr<std::vector<uint32_t>> StepResults::GatheredRanks() const {
  const std::vector<uint32_t>& first = chunks_[0].contributors;
  for (uint32_t c = 1; c < chunks_.size(); ++c) {
    const std::vector<uint32_t>& others = chunks_[c].contributors;
    if (others == first) continue;
    return absl::AbortedError(
        absl::StrCat("a member of gather \"", plan_.spec.name,
                     "\" was lost during the operation: chunk 0 has the contributions of ranks ",
                     absl::StrJoin(first, ", "), ", and chunk ", c, " those of ranks ",
                     absl::StrJoin(others, ", ")));
  }
  return first;
}

StepResults::Closing StepResults::FindClosing() const {
  Closing closing;
  closing.contributors = chunks_.front().contributors;
  for (const ChunkResult& chunk : chunks_) {
    closing.epoch = std::max(closing.epoch, chunk.epoch);
    if (chunk.contributors == closing.contributors) continue;
    closing.whole = false;
    std::vector<uint32_t> all;
    std::set_union(chunk.contributors.begin(), chunk.contributors.end(),
                   closing.contributors.begin(), closing.contributors.end(),
                   std::back_inserter(all));
    closing.contributors = std::move(all);
  }
  if (closing.whole) return closing;
  for (const ChunkResult& chunk : chunks_) closing.parts.push_back(chunk.contributors);
  return closing;
}

Round StepResults::FindNewest() const {
  Round newest{};
  for (const ChunkResult& chunk : chunks_) newest = std::max(newest, chunk.newest);
  return newest;
}

uint64_t StepResults::EpochOf(Layout::ChunkRange chunks) const {
  uint64_t epoch = 0;
  for (uint32_t c = chunks.first; c < chunks.first + chunks.count; ++c) {
    epoch = std::max(epoch, chunks_[c].epoch);
  }
  return epoch;
}

bool StepResults::HasContributor(ChunkId chunk, uint32_t rank) const {
  const std::vector<uint32_t>& contributors = chunks_[ToNumber(chunk)].contributors;
  return std::binary_search(contributors.begin(), contributors.end(), rank);
}

}  // namespace syncgrads::client
