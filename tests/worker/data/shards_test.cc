#include "worker/data/shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/storage/file_storage.h"

namespace syncgrads {
namespace {

// The numbers of all shards.
std::vector<uint32_t> All(uint32_t shards) { return ShardsOf(shards, 0, 1); }

v1::DataSpec Cut(v1::DataSpec::Split split, v1::DataSpec::Partition partition) {
  v1::DataSpec spec;
  spec.set_split(split);
  spec.set_partition(partition);
  return spec;
}

std::vector<uint64_t> Sizes(size_t rows, uint32_t shards, v1::DataSpec::Split split) {
  std::vector<uint64_t> sizes;
  size_t next = 0;
  for (const auto& shard :
       SplitRows(rows, shards, All(shards), Cut(split, v1::DataSpec::CONTIGUOUS))) {
    for (const size_t row : shard) EXPECT_EQ(row, next++);
    sizes.push_back(shard.size());
  }
  return sizes;
}

using Numbers = std::vector<uint64_t>;

TEST(SplitRowsTest, CeilMakesTheLastOnesShort) {
  EXPECT_EQ(Sizes(10, 3, v1::DataSpec::KEEP_REMAINDER), (Numbers{4, 4, 2}));
  EXPECT_EQ(Sizes(9, 3, v1::DataSpec::KEEP_REMAINDER), (Numbers{3, 3, 3}));
}

TEST(SplitRowsTest, FloorDropsTheTail) {
  EXPECT_EQ(Sizes(10, 3, v1::DataSpec::DROP_REMAINDER), (Numbers{3, 3, 3}));
}

TEST(SplitRowsTest, MoreShardsThanRowsLeavesSomeEmpty) {
  EXPECT_EQ(Sizes(2, 4, v1::DataSpec::KEEP_REMAINDER), (Numbers{1, 1, 0, 0}));
  EXPECT_EQ(Sizes(5, 4, v1::DataSpec::KEEP_REMAINDER), (Numbers{2, 2, 1, 0}));
  EXPECT_EQ(Sizes(2, 4, v1::DataSpec::DROP_REMAINDER), (Numbers{0, 0, 0, 0}));
  EXPECT_EQ(Sizes(0, 2, v1::DataSpec::KEEP_REMAINDER), (Numbers{0, 0}));
}

TEST(SplitRowsTest, PermutedRowsAreASampleOfAllOfThem) {
  const v1::DataSpec spec = Cut(v1::DataSpec::KEEP_REMAINDER, v1::DataSpec::PERMUTED);
  const auto shards = SplitRows(1000, 4, All(4), spec);
  std::set<size_t> seen;
  for (const auto& shard : shards) {
    EXPECT_EQ(shard.size(), 250u);
    EXPECT_TRUE(std::is_sorted(shard.begin(), shard.end()));
    seen.insert(shard.begin(), shard.end());
    // The shard is expected to have 125 rows of the table's first half. The standard deviation is
    // less than 8, that of 250 draws with replacement.
    const auto half = std::lower_bound(shard.begin(), shard.end(), 500u);
    EXPECT_NEAR(static_cast<double>(half - shard.begin()), 125, 40);
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_EQ(SplitRows(1000, 4, All(4), spec), shards);
}

// If all shards were made, this test would run out of memory.
TEST(SplitRowsTest, OnlyTheShardsThatAreRequestedAreMade) {
  const v1::DataSpec spec = Cut(v1::DataSpec::KEEP_REMAINDER, v1::DataSpec::PERMUTED);
  EXPECT_EQ(SplitRows(1000, 4, {1, 3}, spec),
            (std::vector<std::vector<size_t>>{SplitRows(1000, 4, All(4), spec)[1],
                                              SplitRows(1000, 4, All(4), spec)[3]}));
  constexpr uint32_t kMany = 4'000'000'000;
  const auto shards = SplitRows(3, kMany, {0, 1, 2, kMany - 1}, spec);
  ASSERT_EQ(shards.size(), 4u);
  std::set<size_t> seen;
  for (const auto& shard : shards) seen.insert(shard.begin(), shard.end());
  EXPECT_EQ(seen, (std::set<size_t>{0, 1, 2}));
  EXPECT_TRUE(shards[3].empty());
}

TEST(SplitRowsTest, OfPermutedRowsTheRemainderIsDroppedToo) {
  const auto shards =
      SplitRows(10, 3, All(3), Cut(v1::DataSpec::DROP_REMAINDER, v1::DataSpec::PERMUTED));
  std::set<size_t> seen;
  for (const auto& shard : shards) {
    EXPECT_EQ(shard.size(), 3u);
    seen.insert(shard.begin(), shard.end());
  }
  EXPECT_EQ(seen.size(), 9u);
}

TEST(ShardsOfTest, DealsShardsToWorkersInTurn) {
  EXPECT_EQ(ShardsOf(7, 1, 3), (std::vector<uint32_t>{1, 4}));
  EXPECT_EQ(ShardsOf(3, 2, 3), (std::vector<uint32_t>{2}));
}

v1::DataSpec FileSpec(const std::string& path, uint32_t shards) {
  v1::DataSpec spec;
  spec.mutable_table()->set_path(path);
  spec.set_target("y");
  spec.set_shards(shards);
  spec.set_partition(v1::DataSpec::CONTIGUOUS);
  return spec;
}

std::shared_ptr<const Storage> FilesIn(const std::string& directory) {
  return std::make_shared<FileStorage>(directory);
}

constexpr const char* kFiveRows = "x,y\n0,0\n1,1\n2,2\n3,3\n4,4\n";

TEST(LoadShardsTest, AFileIsCutIntoRanges) {
  const TemporaryDirectory directory;
  directory.Write("t.csv", kFiveRows);
  const auto data = LoadShards(FileSpec("t.csv", 3), FilesIn(directory.path()),
                               {TargetKind::kNumber, /*rank=*/0, /*world_size=*/2});
  SYNCGRADS_ASSERT_OK(data);
  EXPECT_EQ(data->total_shards, 3u);
  ASSERT_EQ(data->shards.size(), 2u);
  EXPECT_EQ(data->shards[0].table.features, (std::vector<double>{0, 1}));
  EXPECT_EQ(data->shards[1].number, 2u);
  EXPECT_EQ(data->shards[1].table.features, (std::vector<double>{4}));
}

TEST(LoadShardsTest, WithoutANumberThereIsAShardForEachWorker) {
  const TemporaryDirectory directory;
  directory.Write("t.csv", kFiveRows);
  const auto data =
      LoadShards(FileSpec("t.csv", 0), FilesIn(directory.path()), {TargetKind::kNumber, 7, 8});
  SYNCGRADS_ASSERT_OK(data);
  EXPECT_EQ(data->total_shards, 8u);
  EXPECT_EQ(data->shards[0].table.rows, 0u);
}

TEST(LoadShardsTest, MoreWorkersThanShardsIsAnErrorWithBothNumbers) {
  const TemporaryDirectory directory;
  directory.Write("t.csv", kFiveRows);
  ExpectError(
      LoadShards(FileSpec("t.csv", 3), FilesIn(directory.path()), {TargetKind::kNumber, 0, 4}),
      absl::StatusCode::kInvalidArgument, {"4 workers", "data.shards is 3"});
}

TEST(LoadShardsTest, TooManyShardsAreRefused) {
  const TemporaryDirectory directory;
  directory.Write("t.csv", kFiveRows);
  ExpectError(LoadShards(FileSpec("t.csv", kMostShards + 1), FilesIn(directory.path()),
                         {TargetKind::kNumber, 0, 1}),
              absl::StatusCode::kInvalidArgument, {"1048577 shards", "at most 1048576"});
}

TEST(LoadShardsTest, PermutedShardsDoNotDependOnTheNumberOfWorkers) {
  const TemporaryDirectory directory;
  directory.Write("t.csv", kFiveRows);
  v1::DataSpec spec = FileSpec("t.csv", 2);
  spec.set_partition(v1::DataSpec::PERMUTED);
  const auto load = [&](uint32_t rank, uint32_t world_size) {
    const auto data =
        LoadShards(spec, FilesIn(directory.path()), {TargetKind::kNumber, rank, world_size});
    SYNCGRADS_EXPECT_OK(data);
    return data->shards;
  };
  const std::vector<Shard> both = load(0, 1);
  ASSERT_EQ(both.size(), 2u);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const std::vector<Shard> own = load(rank, 2);
    EXPECT_EQ(own[0].table.features, both[rank].table.features);
    EXPECT_EQ(own[0].table.targets, own[0].table.features);  // rows stay whole
  }
}

v1::DataSpec DirectorySpec(uint32_t shards) {
  v1::DataSpec spec = FileSpec("data", shards);
  spec.mutable_table()->set_file("t.tsv");
  return spec;
}

TEST(LoadShardsTest, ADirectoryHasAShardInEachOfItsShardDirectories) {
  const TemporaryDirectory directory;
  directory.Write("data/shard0/t.tsv", "x\ty\n0\t0\n");
  directory.Write("data/shard1/t.tsv", "y\tx\n9\t1\n");
  directory.Write("data/other/t.tsv", "nonsense");
  const auto data =
      LoadShards(DirectorySpec(0), FilesIn(directory.path()), {TargetKind::kNumber, 0, 1});
  SYNCGRADS_ASSERT_OK(data);
  ASSERT_EQ(data->shards.size(), 2u);
  EXPECT_EQ(data->shards[1].table.features, (std::vector<double>{1}));
  EXPECT_EQ(data->shards[1].table.targets, (std::vector<double>{9}));
}

v1::DataSpec JoinedSpec() {
  v1::DataSpec spec;
  spec.mutable_table()->set_path("data");
  spec.mutable_table()->add_tables()->set_file("features.tsv");
  v1::JoinedTable& targets = *spec.mutable_table()->add_tables();
  targets.set_file("targets.csv");
  targets.set_id("name");
  spec.mutable_table()->set_master_table("targets.csv");
  spec.set_target("y");
  spec.set_partition(v1::DataSpec::CONTIGUOUS);
  return spec;
}

TEST(LoadShardsTest, TablesAreJoinedByIdInTheMastersOrder) {
  const TemporaryDirectory directory;
  directory.Write("data/shard0/features.tsv", "a\tID\tb\n1\tone\t10\n2\ttwo\t20\n3\tthree\t30\n");
  directory.Write("data/shard0/targets.csv", "name,y\nthree,0.3\none,0.1\n");
  directory.Write("data/shard1/features.tsv", "ID\tb\ta\n1\t50\t5\n");
  directory.Write("data/shard1/targets.csv", "y,name\n0.5,1\n");
  const auto data =
      LoadShards(JoinedSpec(), FilesIn(directory.path()), {TargetKind::kNumber, 0, 1});
  SYNCGRADS_ASSERT_OK(data);
  ASSERT_EQ(data->shards.size(), 2u);
  EXPECT_EQ(data->shards[0].table.feature_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(data->shards[0].table.features, (std::vector<double>{3, 30, 1, 10}));
  EXPECT_EQ(data->shards[0].table.targets, (std::vector<double>{0.3, 0.1}));
  EXPECT_EQ(data->shards[1].table.targets, (std::vector<double>{0.5}));
}

TEST(LoadShardsTest, JoinedTablesWithoutShardsAreCutIntoRanges) {
  const TemporaryDirectory directory;
  directory.Write("data/features.tsv", "ID\ta\nx\t1\ny\t2\nz\t3\n");
  directory.Write("data/targets.csv", "name,y\nx,7\ny,8\nz,9\n");
  const auto storage = FilesIn(directory.path());
  const auto second = LoadShards(JoinedSpec(), storage, {TargetKind::kNumber, 1, 2});
  SYNCGRADS_ASSERT_OK(second);
  ASSERT_EQ(second->shards.size(), 1u);
  EXPECT_EQ(second->shards[0].table.targets, (std::vector<double>{9}));
  EXPECT_FALSE(*HasShardDirectories(JoinedSpec(), *storage));
}

TEST(LoadShardsTest, WhatCannotBeJoinedIsNamedWithItsPlaces) {
  const TemporaryDirectory directory;
  const auto expect = [&](const std::string& features, const std::string& targets,
                          const std::vector<std::string>& texts) {
    directory.Write("data/features.tsv", features);
    directory.Write("data/targets.csv", targets);
    const auto data =
        LoadShards(JoinedSpec(), FilesIn(directory.path()), {TargetKind::kNumber, 0, 1});
    for (const std::string& text : texts) {
      ExpectError(data, absl::StatusCode::kInvalidArgument, {text});
    }
  };
  expect("ID\ta\nx\t1\n", "name,y\nx,1\nq,2\n",
         {"targets.csv:3: the ID \"q\" is not in ", "features.tsv"});
  expect("ID\ta\nx\t1\nx\t2\n", "name,y\nx,1\n",
         {"features.tsv:3: the ID \"x\" is already at ", "features.tsv:2, but"});
  expect("ID\ta\nx\t1\n", "name,y\nx,1\nx,2\n",
         {"targets.csv:3: the ID \"x\" is already at ", "targets.csv:2, but"});
  expect("ID\ty\nx\t1\n", "name,y\nx,1\n", {"features.tsv:1: column \"y\""});
  expect("id\ta\nx\t1\n", "name,y\nx,1\n", {"features.tsv:1: there is no column \"ID\""});
  expect("ID\ta\nx\tmany\n", "name,y\nx,1\n",
         {"features.tsv:2: column \"a\": \"many\" is not a number"});
}

TEST(LoadShardsTest, MoreWorkersThanShardDirectoriesIsAnErrorWithBothNumbers) {
  const TemporaryDirectory directory;
  directory.Write("data/shard0/t.tsv", "x\ty\n");
  directory.Write("data/shard1/t.tsv", "x\ty\n");
  ExpectError(LoadShards(DirectorySpec(0), FilesIn(directory.path()), {TargetKind::kNumber, 0, 3}),
              absl::StatusCode::kInvalidArgument,
              {"3 workers", "shard directories in " + directory.path() + "/data is 2"});
}

TEST(LoadShardsTest, AnotherNumberOfShardDirectoriesIsAnErrorWithBothNumbers) {
  const TemporaryDirectory directory;
  directory.Write("data/shard0/t.tsv", "x\ty\n");
  ExpectError(LoadShards(DirectorySpec(2), FilesIn(directory.path()), {TargetKind::kNumber, 0, 1}),
              absl::StatusCode::kInvalidArgument, {"data.shards is 2", "has 1 shard"});
}

TEST(LoadShardsTest, MissingShardsAndFilesAreNamed) {
  const TemporaryDirectory directory;
  directory.Write("data/shard0/t.tsv", "x\ty\n");
  directory.Write("data/shard2/t.tsv", "x\ty\n");
  ExpectError(LoadShards(DirectorySpec(0), FilesIn(directory.path()), {TargetKind::kNumber, 0, 1}),
              absl::StatusCode::kNotFound, {"has shard2 but no shard1"});
  directory.Write("data/shard1/other.tsv", "x\ty\n");
  ExpectError(LoadShards(DirectorySpec(0), FilesIn(directory.path()), {TargetKind::kNumber, 0, 1}),
              absl::StatusCode::kNotFound, {"shard1/t.tsv"});
  ExpectError(
      LoadShards(FileSpec("none.csv", 0), FilesIn(directory.path()), {TargetKind::kNumber, 0, 1}),
      absl::StatusCode::kNotFound, {"none.csv"});
}

TEST(LoadShardsTest, AFileAndADirectoryAreNotMistakenForEachOther) {
  const TemporaryDirectory directory;
  directory.Write("data/shard0/t.tsv", "x\ty\n");
  ExpectError(
      LoadShards(FileSpec("data", 0), FilesIn(directory.path()), {TargetKind::kNumber, 0, 1}),
      absl::StatusCode::kInvalidArgument, {"data.table.file is not given"});
  v1::DataSpec spec = FileSpec("data/shard0/t.tsv", 0);
  spec.mutable_table()->set_file("t.tsv");
  ExpectError(LoadShards(spec, FilesIn(directory.path()), {TargetKind::kNumber, 0, 1}),
              absl::StatusCode::kInvalidArgument, {"is not a directory"});
}

TEST(GeneratedShardsTest, DoNotDependOnHowManyShardsThereAre) {
  v1::DataSpec spec;
  spec.mutable_generated()->set_rows(1000);
  spec.mutable_generated()->set_seed(3);
  spec.set_partition(v1::DataSpec::CONTIGUOUS);
  const auto whole = LoadShards(spec, FilesIn("."), {TargetKind::kClass, 0, 1});
  SYNCGRADS_ASSERT_OK(whole);
  const auto half = LoadShards(spec, FilesIn("."), {TargetKind::kClass, 1, 2});
  SYNCGRADS_ASSERT_OK(half);
  const Table& all = whole->shards[0].table;
  const Table& rest = half->shards[0].table;
  ASSERT_EQ(rest.rows, 500u);
  std::vector<size_t> second_half(500);
  std::iota(second_half.begin(), second_half.end(), 500);
  EXPECT_EQ(rest.features, all.Select(second_half).features);
  EXPECT_EQ(rest.targets, all.Select(second_half).targets);
  double above = 0;
  for (size_t row = 0; row < all.rows; ++row) {
    const auto point = all.FeaturesOf(row);
    EXPECT_EQ(all.targets[row], point[1] > point[0] * point[0] * point[0] ? 1 : 0);
    above += all.targets[row];
  }
  EXPECT_NEAR(above, 500, 60);
}

TEST(GeneratedShardsTest, AnUnknownColumnIsNamed) {
  v1::DataSpec spec;
  spec.mutable_generated()->set_rows(10);
  spec.add_features("z");
  ExpectError(LoadShards(spec, FilesIn("."), {TargetKind::kClass, 0, 1}),
              absl::StatusCode::kInvalidArgument, {"\"z\"", "x, y, above"});
}

}  // namespace
}  // namespace syncgrads
