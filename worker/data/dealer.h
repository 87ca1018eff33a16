// Rows that are dealt to whoever is there.
//
// All rows of a pass are one sequence. A step deals the next ones to its members,
// in rank order, the same number to each while they last. What a worker was dealt
// but did not get counted goes to the end of the pass. So what is dealt next is a
// function of the seed, and of who was there and counted in each step; every row
// counts once in each pass.

#ifndef SYNCGRADS_WORKER_DATA_DEALER_H_
#define SYNCGRADS_WORKER_DATA_DEALER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace syncgrads {

// Not thread-safe.
class Dealer {
 public:
  struct Options {
    uint64_t seed = 0;
    // How many rows there are.
    size_t rows = 0;
    // Each worker's in a step. Not 0.
    uint32_t batch_size = 1;
    // Not WITH_REPLACEMENT.
    v1::DataSpec::Order order = v1::DataSpec::SHUFFLED;
    // Passes over the rows; 0: without end.
    uint64_t epochs = 0;
  };

  explicit Dealer(const Options& options);

  // There is nothing left to deal.
  bool ended() const;
  // What the next step deals to `rank`: none if there is too little left. Numbers from 0 to below
  // the number of rows.
  std::vector<size_t> RowsOf(uint32_t rank) const;
  // A step of `world_size` members has been made, to which these ranks, ascending,
  // have contributed.
  void Advance(uint32_t world_size, absl::Span<const uint32_t> contributors);

  // Where it is, to be copied from and to a dealer of the same options: the pass,
  // and how many of `order` have been counted in it.
  absl::Span<int64_t> position() { return absl::MakeSpan(position_); }
  // The rows of this pass, in the order in which they are dealt.
  absl::Span<int64_t> order() { return absl::MakeSpan(order_); }

 private:
  void BeginPass();
  size_t counted() const { return static_cast<size_t>(position_[1]); }

  const Options options_;
  std::vector<int64_t> position_ = {0, 0};
  std::vector<int64_t> order_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_DEALER_H_
