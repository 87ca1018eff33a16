#include "worker/data/row_assigner.h"

#include <algorithm>
#include <numeric>

#include "worker/base/random.h"

namespace syncgrads {
namespace {

// Separates the order of the rows from other uses of the job's seed.
constexpr uint64_t kDynamicOrderStream = 3;

}  // namespace

RowAssigner::RowAssigner(const Options& options) : options_(options), order_(options.rows) {
  BeginPass();
}

void RowAssigner::BeginPass() {
  std::iota(order_.begin(), order_.end(), 0);
  if (options_.order != v1::DataSpec::SHUFFLED) return;
  RandomStream random(options_.seed, {kDynamicOrderStream, static_cast<uint64_t>(position_[0])});
  random.Shuffle(order_);
}

bool RowAssigner::ended() const {
  if (order_.empty()) return true;
  return options_.epochs != 0 && static_cast<uint64_t>(position_[0]) >= options_.epochs;
}

std::vector<size_t> RowAssigner::RowsOf(uint32_t rank) const {
  std::vector<size_t> rows;
  if (ended()) return rows;
  const size_t begin = std::min(order_.size(), counted() + size_t{rank} * options_.batch_size);
  const size_t end = std::min(order_.size(), begin + options_.batch_size);
  for (size_t i = begin; i < end; ++i) rows.push_back(static_cast<size_t>(order_[i]));
  return rows;
}

void RowAssigner::Advance(uint32_t world_size, absl::Span<const uint32_t> contributors) {
  if (ended()) return;
  const size_t begin = counted();
  const size_t end = std::min(order_.size(), begin + size_t{world_size} * options_.batch_size);
  std::vector<int64_t> back;
  size_t next = begin;
  for (size_t i = begin; i < end; ++i) {
    const auto rank = static_cast<uint32_t>((i - begin) / options_.batch_size);
    if (std::binary_search(contributors.begin(), contributors.end(), rank)) {
      order_[next++] = order_[i];
    } else {
      back.push_back(order_[i]);
    }
  }
  if (!back.empty()) {
    std::copy(order_.begin() + static_cast<ptrdiff_t>(end), order_.end(),
              order_.begin() + static_cast<ptrdiff_t>(next));
    std::copy(back.begin(), back.end(), order_.end() - static_cast<ptrdiff_t>(back.size()));
  }
  position_[1] = static_cast<int64_t>(next);
  if (next < order_.size()) return;
  position_ = {position_[0] + 1, 0};
  BeginPass();
}

}  // namespace syncgrads
