#include "worker/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

// Makes the shards of worker `rank`. Shard i has rows[i] rows, and a row's feature is its number.
WorkerData DataOf(const std::vector<size_t>& rows, uint32_t rank, uint32_t world_size) {
  WorkerData data;
  data.total_shards = static_cast<uint32_t>(rows.size());
  for (const uint32_t number : ShardsOf(data.total_shards, rank, world_size)) {
    Shard shard;
    shard.number = number;
    shard.table.feature_names = {"x"};
    shard.table.rows = rows[number];
    data.shards.push_back(shard);
  }
  return data;
}

// The shard's number and the row.
using Row = std::pair<uint32_t, size_t>;

std::vector<std::vector<Row>> AllBatches(const WorkerData& data, const Loader::Options& options) {
  auto loader = Loader::Create(data, options);
  EXPECT_TRUE(loader.ok()) << loader.status();
  std::vector<std::vector<Row>> batches;
  while (true) {
    std::vector<Row> batch;
    for (const RowId& id : loader->Next()) {
      batch.push_back({data.shards[id.shard].number, id.row});
    }
    if (batch.empty()) break;
    batches.push_back(batch);
  }
  EXPECT_EQ(batches.size(), loader->steps());
  return batches;
}

TEST(LoaderTest, ThreeWorkersSeeTheRowsOfOneWorkerWithThreeTimesTheBatch) {
  // This holds also if shards are uneven, and if one is empty.
  for (const std::vector<size_t>& rows :
       {std::vector<size_t>{40, 40, 40}, {40, 33, 9}, {20, 20, 0}}) {
    Loader::Options options = {.seed = 5, .batch_size = 24, .validation_every = 5, .epochs = 4};
    const auto one = AllBatches(DataOf(rows, 0, 1), options);
    options.batch_size = 8;
    std::vector<std::vector<Row>> joined;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const auto batches = AllBatches(DataOf(rows, rank, 3), options);
      joined.resize(std::max(joined.size(), batches.size()));
      for (size_t step = 0; step < batches.size(); ++step) {
        joined[step].insert(joined[step].end(), batches[step].begin(), batches[step].end());
      }
    }
    EXPECT_EQ(one, joined);
  }
}

TEST(LoaderTest, EachPassHasEveryRowOnceInAnotherOrder) {
  const auto batches = AllBatches(DataOf({10}, 0, 1), {.seed = 5, .batch_size = 4, .epochs = 3});
  ASSERT_EQ(batches.size(), 9u);  // 4, 4, 2 in each pass
  std::set<std::vector<Row>> orders;
  for (size_t pass = 0; pass < 3; ++pass) {
    std::vector<Row> rows;
    for (size_t i = 0; i < 3; ++i) {
      rows.insert(rows.end(), batches[3 * pass + i].begin(), batches[3 * pass + i].end());
    }
    orders.insert(rows);
    std::sort(rows.begin(), rows.end());
    ASSERT_EQ(rows.size(), 10u);
    for (size_t row = 0; row < 10; ++row) EXPECT_EQ(rows[row], Row(0, row));
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST(LoaderTest, TheOrderIsAFunctionOfTheSeed) {
  const Loader::Options options = {.seed = 5, .batch_size = 4, .epochs = 3};
  Loader::Options other = options;
  other.seed = 6;
  EXPECT_EQ(AllBatches(DataOf({10}, 0, 1), options), AllBatches(DataOf({10}, 0, 1), options));
  EXPECT_NE(AllBatches(DataOf({10}, 0, 1), options), AllBatches(DataOf({10}, 0, 1), other));
}

TEST(LoaderTest, HeldOutRowsAreNotTrainedOn) {
  const auto batches = AllBatches(
      DataOf({10}, 0, 1),
      {.batch_size = 100, .validation_every = 4, .order = v1::DataSpec::AS_IN_SOURCE, .epochs = 1});
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0], (std::vector<Row>{{0, 1}, {0, 2}, {0, 3}, {0, 5}, {0, 6}, {0, 7}, {0, 9}}));
  EXPECT_EQ(RowsOf(DataOf({10}, 0, 1), 4, /*held_out=*/true),
            (std::vector<RowId>{{0, 0}, {0, 4}, {0, 8}}));
}

TEST(LoaderTest, ABatchIsSharedOutAmongTheShardsTheFirstTakingMore) {
  const auto batches = AllBatches(DataOf({9, 9, 9}, 0, 1), {.batch_size = 8, .epochs = 1});
  std::map<uint32_t, int> counts;
  for (const Row& row : batches[0]) ++counts[row.first];
  EXPECT_EQ(counts, (std::map<uint32_t, int>{{0, 3}, {1, 3}, {2, 2}}));
}

TEST(LoaderTest, StepsGoOverTheDataAsOftenAsItTakes) {
  const auto batches = AllBatches(DataOf({3}, 0, 1), {.batch_size = 2, .steps = 5});
  ASSERT_EQ(batches.size(), 5u);
  EXPECT_EQ(batches[1].size(), 1u);
  EXPECT_EQ(batches[4].size(), 2u);
}

TEST(LoaderTest, AnEmptyShardHasNoBatches) {
  EXPECT_EQ(AllBatches(DataOf({0}, 0, 1), {.batch_size = 2, .steps = 5}).size(), 0u);
  EXPECT_EQ(AllBatches(DataOf({0}, 0, 1), {.batch_size = 2, .epochs = 5}).size(), 0u);
}

TEST(LoaderTest, WithReplacementARowMayComeTwiceInAPass) {
  const auto batches = AllBatches(
      DataOf({50}, 0, 1), {.batch_size = 50, .order = v1::DataSpec::WITH_REPLACEMENT, .epochs = 2});
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[0].size(), 50u);
  EXPECT_LT(std::set<Row>(batches[0].begin(), batches[0].end()).size(), 50u);
  EXPECT_NE(batches[0], batches[1]);
}

TEST(LoaderTest, AWorkerThatHasAllShardsCanTakeFromItsOwn) {
  const Loader::Options options = {.seed = 5, .batch_size = 4, .epochs = 2};
  Loader::Options own = options;
  own.shards = {1};
  EXPECT_EQ(AllBatches(DataOf({9, 7, 8}, 0, 1), own), AllBatches(DataOf({9, 7, 8}, 1, 3), options));
}

TEST(LoaderTest, AfterAHistoryTheSameRowsComeAsWithoutABreak) {
  for (const auto order : {v1::DataSpec::SHUFFLED, v1::DataSpec::WITH_REPLACEMENT}) {
    for (const uint64_t made : {1, 4, 5, 7}) {
      Loader::Options options = {.seed = 5, .batch_size = 7, .order = order, .epochs = 3};
      const WorkerData data = DataOf({20, 13, 9, 2}, 1, 2);
      const auto whole = AllBatches(data, options);
      options.history = {{2, 7, made}};
      const auto rest = AllBatches(data, options);
      EXPECT_EQ(rest, std::vector(whole.begin() + static_cast<ptrdiff_t>(made), whole.end()));
      options.steps = std::exchange(options.epochs, 0) + 7;
      EXPECT_EQ(AllBatches(data, options).size(), options.steps - made);
    }
  }
}

// If the batches were skipped one by one, this test would not end.
TEST(LoaderTest, ALongHistoryIsSkippedAtOnce) {
  const WorkerData data = DataOf({20}, 0, 1);
  Loader::Options options = {.seed = 5, .batch_size = 7, .epochs = 3};
  options.history = {{1, 7, uint64_t{1} << 63}};
  EXPECT_TRUE(AllBatches(data, options).empty());
  options.epochs = 0;
  // The passes of the history end with its last step, as each has 3 batches.
  options.history = {{1, 7, uint64_t{3} << 60}};
  options.steps = (uint64_t{3} << 60) + 3;
  std::set<Row> rows;
  for (const auto& batch : AllBatches(data, options)) rows.insert(batch.begin(), batch.end());
  EXPECT_EQ(rows.size(), 20u);
}

TEST(LoaderTest, AfterAHistoryOfOtherWorkersEveryRowStillComesOnceAPass) {
  const std::vector<size_t> rows = {20, 13, 9, 30, 2};
  Loader::Options options = {.seed = 5, .batch_size = 6, .epochs = 2};
  std::map<Row, int> counts;
  std::vector<DataSegment> history;
  // The number of workers changes: three, two, one, and two until the end.
  for (const uint32_t workers : {3, 2, 1, 2}) {
    const size_t steps = history.size() == 3 ? 1000 : 2;
    options.history = history;
    for (uint32_t rank = 0; rank < workers; ++rank) {
      const auto batches = AllBatches(DataOf(rows, rank, workers), options);
      for (size_t step = 0; step < std::min(steps, batches.size()); ++step) {
        for (const Row& row : batches[step]) ++counts[row];
      }
    }
    history.push_back({workers, options.batch_size, steps});
    options.batch_size = 5;
  }
  EXPECT_EQ(counts.size(), 20u + 13 + 9 + 30 + 2);
  for (const auto& [row, count] : counts) EXPECT_EQ(count, 2) << row.first << " " << row.second;
}

// Of 101 rows, the first worker has 51 and makes six steps, and the second one makes five.
TEST(LoaderTest, AfterMoreEpochsEveryRowStillComesOnceAPass) {
  Loader::Options options = {.seed = 5, .batch_size = 10, .epochs = 1};
  std::map<Row, int> counts;
  for (const uint32_t epochs : {1, 2, 4}) {
    options.epochs = epochs;
    uint64_t steps = 0;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const auto batches = AllBatches(DataOf({51, 50}, rank, 2), options);
      for (const auto& batch : batches) {
        for (const Row& row : batch) ++counts[row];
      }
      steps = std::max<uint64_t>(steps, batches.size());
    }
    EXPECT_EQ(counts.size(), 101u);
    for (const auto& [row, count] : counts) {
      EXPECT_EQ(count, static_cast<int>(epochs)) << row.first << " " << row.second;
    }
    options.history.push_back({2, 10, steps, epochs});
  }
}

TEST(LoaderTest, ABatchSmallerThanTheNumberOfShardsIsAnError) {
  ExpectError(Loader::Create(DataOf({9, 9, 9}, 0, 1), {.batch_size = 2, .epochs = 1}),
              absl::StatusCode::kInvalidArgument, {"batch_size is 2", "3 shards"});
}

}  // namespace
}  // namespace syncgrads
