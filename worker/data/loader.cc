#include "worker/data/loader.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/base/random.h"

namespace syncgrads {
namespace {

// Separates the order of the rows from other uses of the job's seed.
constexpr uint64_t kOrderStream = 1;

// The number of rows in a batch that come from the shard with index `index` of `shards`.
size_t PartOf(size_t batch_size, size_t index, size_t shards) {
  return batch_size / shards + (index < batch_size % shards ? 1 : 0);
}

// The number of rows of shard `number` that its owner used in each step.
size_t PartOf(const DataSegment& segment, uint32_t number, uint32_t total_shards) {
  const uint32_t owner = number % segment.workers;
  const size_t owned = ShardsOf(total_shards, owner, segment.workers).size();
  return PartOf(segment.batch_size, number / segment.workers, owned);
}

// The number of draws of `count` rows each until `rows` rows are drawn.
uint64_t DrawsOf(size_t rows, size_t count) { return (rows + count - 1) / count; }

}  // namespace

std::vector<RowId> RowsOf(const WorkerData& data, uint32_t validation_every, bool held_out) {
  std::vector<RowId> rows;
  for (size_t shard = 0; shard < data.shards.size(); ++shard) {
    for (size_t row = 0; row < data.shards[shard].table.rows; ++row) {
      if (IsHeldOut(row, validation_every) == held_out) rows.push_back({shard, row});
    }
  }
  return rows;
}

ShardStream::ShardStream(uint64_t seed, uint32_t number, std::vector<size_t> rows,
                         v1::DataSpec::Order order, uint64_t passes)
    : seed_(seed), number_(number), rows_(std::move(rows)), order_(order), passes_(passes) {
  BeginPass();
}

void ShardStream::BeginPass() {
  RandomStream random(seed_, {kOrderStream, pass_, number_});
  current_ = rows_;
  next_ = 0;
  if (order_ == v1::DataSpec::SHUFFLED) random.Shuffle(current_);
  if (order_ == v1::DataSpec::WITH_REPLACEMENT) {
    for (size_t& row : current_) row = rows_[random.NextBelow(rows_.size())];
  }
}

void ShardStream::Draw(size_t count, std::vector<size_t>& rows) {
  if (IsAtEnd()) return;
  if (next_ == current_.size()) {
    ++pass_;
    BeginPass();
  }
  const size_t end = std::min(current_.size(), next_ + count);
  rows.insert(rows.end(), current_.begin() + next_, current_.begin() + end);
  next_ = end;
}

bool ShardStream::IsAtEnd() const {
  if (next_ < current_.size()) return false;
  return rows_.empty() || (passes_ != 0 && pass_ + 1 >= passes_);
}

void ShardStream::Skip(size_t count, uint64_t draws, uint64_t passes) {
  if (rows_.empty() || count == 0 || draws == 0) return;
  const uint64_t of_pass = DrawsOf(rows_.size(), count);
  const uint64_t of_this_pass = DrawsOf(current_.size() - next_, count);
  uint64_t further_passes = 0;
  if (draws > of_this_pass) {
    draws -= of_this_pass;
    further_passes = 1 + (draws - 1) / of_pass;
    draws -= (further_passes - 1) * of_pass;
  }
  const auto left = [this](uint64_t all) {
    if (all == 0) return std::numeric_limits<uint64_t>::max();
    return all > pass_ ? all - 1 - pass_ : 0;
  };
  const uint64_t most = std::min(left(passes), left(passes_));
  if (further_passes > most) {
    pass_ += most;
    next_ = current_.size();
    return;
  }
  if (further_passes > 0) {
    pass_ += further_passes;
    BeginPass();
  }
  next_ = std::min(current_.size(), next_ + draws * count);
}

std::optional<uint64_t> ShardStream::DrawsUntilEnd(size_t count) const {
  if (rows_.empty()) return 0;
  if (passes_ == 0) return std::nullopt;
  return DrawsOf(current_.size() - next_, count) +
         (passes_ - 1 - pass_) * DrawsOf(rows_.size(), count);
}

absl::StatusOr<Loader> Loader::Create(const WorkerData& data, const Options& options) {
  Loader loader;
  loader.shards_ = options.shards;
  for (size_t i = 0; options.shards.empty() && i < data.shards.size(); ++i) {
    loader.shards_.push_back(i);
  }
  const size_t shards = loader.shards_.size();
  if (options.batch_size < shards) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_size is ", options.batch_size, ", but this worker reads ", shards,
                     " shards, and each batch needs a row of every shard"));
  }
  bool endless = false;
  for (size_t i = 0; i < shards; ++i) {
    const size_t part = PartOf(options.batch_size, i, shards);
    std::vector<size_t> rows;
    const Shard& shard = data.shards[loader.shards_[i]];
    for (size_t row = 0; row < shard.table.rows; ++row) {
      if (!IsHeldOut(row, options.validation_every)) rows.push_back(row);
    }
    loader.parts_.push_back(part);
    loader.streams_.emplace_back(options.seed, shard.number, std::move(rows), options.order,
                                 options.epochs);
    for (const DataSegment& segment : options.history) {
      const size_t used = options.all_shards ? PartOf(segment.batch_size, i, shards)
                                             : PartOf(segment, shard.number, data.total_shards);
      loader.streams_.back().Skip(used, segment.steps, segment.epochs);
    }
    const std::optional<uint64_t> draws = loader.streams_.back().DrawsUntilEnd(part);
    endless = endless || !draws.has_value();
    loader.steps_ = std::max(loader.steps_, draws.value_or(0));
  }
  if (endless) {
    uint64_t made = 0;
    for (const DataSegment& segment : options.history) made += segment.steps;
    loader.steps_ = options.steps - std::min(options.steps, made);
  }
  return loader;
}

std::vector<RowId> Loader::Next() {
  std::vector<RowId> batch;
  if (done_ == steps_) return batch;
  ++done_;
  std::vector<size_t> rows;
  for (size_t shard = 0; shard < streams_.size(); ++shard) {
    rows.clear();
    streams_[shard].Draw(parts_[shard], rows);
    for (const size_t row : rows) batch.push_back({shards_[shard], row});
  }
  return batch;
}

}  // namespace syncgrads
