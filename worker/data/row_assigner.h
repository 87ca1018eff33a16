// Assigns rows to the workers that are present (data.mode DYNAMIC).
//
// All rows of a pass over the data are one sequence. A step assigns the next rows to its
// members in rank order, an equal number to each while they last. Rows of a worker whose
// contribution did not count go to the end of the pass. So each row counts once in each pass, and
// the rows of a step are a function of the seed and of the members and contributors of the steps
// before.

#ifndef SYNCGRADS_WORKER_DATA_ROW_ASSIGNER_H_
#define SYNCGRADS_WORKER_DATA_ROW_ASSIGNER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace syncgrads {

// Each worker has one, and all of them advance in the same way. Not thread-safe.
class RowAssigner {
 public:
  struct Options {
    uint64_t seed = 0;
    // The number of rows.
    size_t rows = 0;
    // The number of rows of each worker in a step. Not 0.
    uint32_t batch_size = 1;
    // Must not be WITH_REPLACEMENT.
    v1::DataSpec::Order order = v1::DataSpec::SHUFFLED;
    // The number of passes over the rows; 0: no limit.
    uint64_t epochs = 0;
  };

  explicit RowAssigner(const Options& options);

  // Whether all passes are over, or there are no rows.
  bool ended() const;
  // The rows that the next step assigns to `rank`, as numbers from 0 to below Options::rows. Empty
  // if too few rows are left in this pass.
  std::vector<size_t> RowsOf(uint32_t rank) const;
  // Advances past a step of `world_size` members. `contributors` are the ranks that contributed
  // to it, in ascending order.
  void Advance(uint32_t world_size, absl::Span<const uint32_t> contributors);

  // The position: the pass, and how many rows of order() have counted in it. position() and
  // order() may be copied from and to an object with the same options.
  absl::Span<int64_t> position() { return absl::MakeSpan(position_); }
  // The rows of this pass, in the order in which they are assigned.
  absl::Span<int64_t> order() { return absl::MakeSpan(order_); }

 private:
  void BeginPass();
  size_t counted() const { return static_cast<size_t>(position_[1]); }

  const Options options_;
  std::array<int64_t, 2> position_ = {0, 0};
  std::vector<int64_t> order_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_ROW_ASSIGNER_H_
