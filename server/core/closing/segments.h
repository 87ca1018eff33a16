// Walks several contributions to a chunk side by side.
//
// Each contribution lies in pieces, which may be cut anywhere, even inside an element. The walk
// yields segments in which every contribution is contiguous, so that a kernel can read it in place.
// An element that is cut is first assembled in a small buffer.

#ifndef SYNCGRADS_SERVER_CORE_CLOSING_SEGMENTS_H_
#define SYNCGRADS_SERVER_CORE_CLOSING_SEGMENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/group/layout.h"
#include "common/kernels/reduce.h"
#include "common/wire/piece_cursor.h"
#include "server/core/closing/closing.h"

namespace syncgrads::server {

// One contribution, and the walk's position in it. Not thread-safe.
struct ContributionWalk {
  explicit ContributionWalk(const Contribution& walked)
      : contribution(&walked), cursor(&walked.payload.pieces) {}

  const Contribution* contribution;
  PieceCursor cursor;
  size_t absent_passed = 0;
  bool present = true;  // in the current run of spans
  std::byte cut_element[8];

  bool IsPresentIn(uint32_t span) const {
    const std::vector<uint32_t>& absent = contribution->absent_spans;
    return absent_passed == absent.size() || absent[absent_passed] != span;
  }
};

// Calls `segment(sources, first_element, elements)` for segments that together cover the whole
// chunk, in order. A segment has at most `max_elements` elements, and all of them have the same
// contributors. `sources` are these contributors, in the order of `contributions`; there may be
// none. Returns the number of contributors to each span.
template <typename Segment>
std::vector<uint32_t> ForEachSegment(const Chunk& chunk, absl::Span<const Seated> contributions,
                                     uint64_t max_elements, Segment segment) {
  const size_t element_bytes = SizeOf(chunk.dtype);
  absl::InlinedVector<ContributionWalk, 8> walks;
  for (const Seated& seated : contributions) {
    if (!seated.contribution->skip) walks.emplace_back(*seated.contribution);
  }
  absl::InlinedVector<WeightedSource, 8> sources;

  const auto walk_run = [&](uint64_t position, uint64_t end) {
    while (position < end) {
      uint64_t taken = std::min(end - position, max_elements);
      for (const ContributionWalk& walk : walks) {
        if (walk.present) {
          taken = std::min<uint64_t>(taken, walk.cursor.contiguous() / element_bytes);
        }
      }
      taken = std::max<uint64_t>(taken, 1);  // 0: the next element of a contribution is cut
      sources.clear();
      for (ContributionWalk& walk : walks) {
        if (!walk.present) continue;
        const std::byte* data = walk.cut_element;
        if (walk.cursor.contiguous() >= element_bytes) {
          data = walk.cursor.data();
          walk.cursor.Advance(taken * element_bytes);
        } else {
          walk.cursor.Read(walk.cut_element, element_bytes);
        }
        sources.push_back({data, walk.contribution->weight});
      }
      segment(absl::Span<const WeightedSource>(sources), position, taken);
      position += taken;
    }
  };

  std::vector<uint32_t> counts(chunk.spans.size());
  for (uint32_t first = 0; first < chunk.spans.size();) {
    // The next run of spans that have the same contributors.
    uint32_t present = 0;
    for (ContributionWalk& walk : walks) {
      walk.present = walk.IsPresentIn(first);
      present += walk.present;
    }
    uint32_t end = first;
    uint64_t elements = 0;
    do {
      for (ContributionWalk& walk : walks) walk.absent_passed += !walk.present;
      counts[end] = present;
      elements += chunk.spans[end].elements;
      ++end;
    } while (end < chunk.spans.size() &&
             std::all_of(walks.begin(), walks.end(), [end](const ContributionWalk& walk) {
               return walk.IsPresentIn(end) == walk.present;
             }));
    const uint64_t position = chunk.spans[first].chunk_offset;
    walk_run(position, position + elements);
    first = end;
  }
  return counts;
}

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSING_SEGMENTS_H_
