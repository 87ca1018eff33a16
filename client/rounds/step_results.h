// What the answers to a step's contributions contain: who contributed to each chunk, and the
// payloads that stay where they arrived (results in place).

#ifndef SYNCGRADS_CLIENT_ROUNDS_STEP_RESULTS_H_
#define SYNCGRADS_CLIENT_ROUNDS_STEP_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/api/group.h"
#include "client/memory/mapped_results.h"
#include "client/rounds/contribution.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// A chunk has the result of the last round in which it was done, until Clear is called for its next
// contribution. Owned by GroupRounds, which calls it with its lock held. Thread-compatible.
class StepResults {
 public:
  // `plan` must outlive this object.
  explicit StepResults(const GroupPlan& plan);

  // Sets the result of a chunk that has none. If it is `in_place`, `memory` keeps the payload
  // alive; otherwise the payload is not used any more. `mapped` is `memory` if that is memory of a
  // server on this host, else null.
  void Set(UpdateFrame answer, bool in_place, std::shared_ptr<const void> memory,
           std::shared_ptr<const MappedResults> mapped);
  // Sets the result of a chunk that was requested in place, but has been copied to `targets`.
  void SetCopied(UpdateFrame answer, std::vector<Target> targets);
  // Removes the chunk's result. Returns the memory of a result in place, which the caller releases
  // without locks; else null.
  std::shared_ptr<const void> Clear(ChunkId chunk);

  // Counts the contributors of a tensor. All its chunks must have results. If nobody contributed to
  // a part of the tensor but somebody contributed to another part, the former is set to zeros in
  // `buffer`, which has the tensor's result or is empty.
  Contributors Count(TensorId tensor, absl::Span<std::byte> buffer) const;
  // Returns the pieces of a tensor's result in place (Group::InPlaceResult). FailedPrecondition if
  // a part of it is not in place.
  absl::StatusOr<std::vector<absl::Span<const std::byte>>> InPlace(TensorId tensor);
  // Returns the memory that all of a tensor's result in place lies in, if that is memory of one
  // server on this host; else null.
  std::shared_ptr<const MappedResults> MappingOf(TensorId tensor) const;
  // Returns all memory of servers on this host in which results in place lie.
  std::vector<std::shared_ptr<const MappedResults>> FindMapped() const;
  // Gathers only, when all chunks have results: returns the ranks that contributed. Aborted if they
  // are not the same in all chunks.
  absl::StatusOr<std::vector<uint32_t>> GatheredRanks() const;

  // The contributors to a round that is done, and the epoch that it belonged to.
  struct Closing {
    uint64_t epoch = 0;
    // The ranks that contributed to any chunk, ascending.
    std::vector<uint32_t> contributors;
    // True if each of them contributed to every chunk.
    bool whole = true;
    // Only if `whole` is false: the ranks that contributed to each chunk.
    std::vector<std::vector<uint32_t>> parts;
  };
  // Requires that all chunks have results.
  Closing FindClosing() const;
  // Returns the newest round that an answer reports as closed (UpdateHeader::newest_round);
  // Round{0} if none does.
  Round FindNewest() const;
  // The epoch that the chunk's round belonged to, and whether the rank contributed to the chunk.
  uint64_t EpochOf(ChunkId chunk) const { return chunks_[ToNumber(chunk)].epoch; }
  bool HasContributor(ChunkId chunk, uint32_t rank) const;
  // The newest epoch that a round of one of the chunks belonged to.
  uint64_t EpochOf(Layout::ChunkRange chunks) const;

 private:
  // A payload that was not copied to a buffer.
  struct Kept {
    Pieces payload;
    std::shared_ptr<const void> memory;  // keeps the payload alive
    std::shared_ptr<const MappedResults> mapped;
  };
  // The parts of an UpdateFrame that are used after the payload has been copied.
  struct ChunkResult {
    uint64_t epoch = 0;
    Round newest{};
    std::vector<uint32_t> counts;
    std::vector<uint32_t> contributors;
    std::vector<uint32_t> left_out;
    std::optional<Kept> in_place;
    std::vector<Target> copied;  // of SetCopied
  };

  // Returns as many zeros as the largest chunk has bytes.
  const std::byte* Zeros();
  // Parts that nobody contributed to keep their values if the servers hold parameters.
  bool holds_parameters() const;

  const GroupPlan& plan_;
  std::vector<ChunkResult> chunks_;
  // Stands for the parts of results in place that nobody contributed to.
  std::vector<std::byte> zeros_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_ROUNDS_STEP_RESULTS_H_
