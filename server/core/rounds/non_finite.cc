#include "server/core/rounds/non_finite.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/kernels/convert.h"
#include "common/kernels/finite.h"
#include "server/core/closing/segments.h"

namespace syncgrads::server {
namespace {

// The most elements that are searched in one segment.
constexpr uint64_t kBlock = 4096;

double ValueOf(DType dtype, const std::byte* element) {
  if (dtype == DType::kF64) {
    double value;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  float value;
  ToFloat(dtype, element, 1, &value);
  return value;
}

// Appends bytes `begin` to `end` of `from` to `to`. The bytes are not copied.
void AppendBytes(const Pieces& from, size_t begin, size_t end, Pieces& to) {
  size_t at = 0;  // where the piece begins
  for (const absl::Span<const std::byte> piece : from) {
    const size_t first = std::max(begin, at);
    const size_t last = std::min(end, at + piece.size());
    if (first < last) to.push_back(piece.subspan(first - at, last - first));
    at += piece.size();
  }
}

}  // namespace

std::vector<NonFinite> FindNonFinite(const Chunk& chunk, const Contribution& contribution) {
  std::vector<NonFinite> found;
  // Encoded contributions are finite: CheckPush refuses any other.
  if (contribution.codec != Codec::kRaw) return found;
  const size_t element_bytes = SizeOf(chunk.dtype);
  uint32_t span = 0;  // index of the span that the walk is in
  const auto look = [&](absl::Span<const WeightedSource> sources, uint64_t first,
                        uint64_t elements) {
    const uint64_t end = first + elements;
    while (!sources.empty() && first < end) {
      const std::byte* const data = sources[0].data + (elements - (end - first)) * element_bytes;
      const size_t position = FirstNonFinite(chunk.dtype, data, end - first);
      first += position;
      if (first == end) return;
      while (first >= chunk.spans[span].chunk_offset + chunk.spans[span].elements) ++span;
      const Span& here = chunk.spans[span];
      if (found.empty() || found.back().span != span) {
        found.push_back({span, here.tensor_offset + (first - here.chunk_offset),
                         ValueOf(chunk.dtype, data + position * element_bytes)});
      }
      // One element of each span is enough.
      first = std::min(end, here.chunk_offset + here.elements);
    }
  };
  const Seated alone = {0, &contribution};
  ForEachSegment(chunk, absl::MakeConstSpan(&alone, 1), kBlock, look);
  return found;
}

Contribution WithoutSpans(const Chunk& chunk, const Contribution& contribution,
                          absl::Span<const uint32_t> spans) {
  Contribution rest;
  rest.weight = contribution.weight;
  rest.payload.owner = contribution.payload.owner;
  const size_t element_bytes = SizeOf(chunk.dtype);
  size_t absent = 0, left_out = 0;
  size_t at = 0;  // position in the payload
  for (uint32_t s = 0; s < chunk.spans.size(); ++s) {
    const size_t bytes = chunk.spans[s].elements * element_bytes;
    if (absent < contribution.absent_spans.size() && contribution.absent_spans[absent] == s) {
      ++absent;
      rest.absent_spans.push_back(s);
      continue;
    }
    if (left_out < spans.size() && spans[left_out] == s) {
      ++left_out;
      rest.absent_spans.push_back(s);
    } else {
      rest.skip = false;
      AppendBytes(contribution.payload.pieces, at, at + bytes, rest.payload.pieces);
    }
    at += bytes;
  }
  if (rest.skip) rest.absent_spans.clear();
  return rest;
}

std::string ToString(const GroupPlan& plan, const Chunk& chunk, Round round,
                     const std::string& worker, const NonFinite& found) {
  return absl::StrCat("gradient \"", plan.layout.tensor(chunk.spans[found.span].tensor).name,
                      "\" of worker \"", worker, "\" is ", found.value, " at index ", found.index,
                      " in step ", ToNumber(round), " of group \"", plan.spec.name, "\"");
}

}  // namespace syncgrads::server
