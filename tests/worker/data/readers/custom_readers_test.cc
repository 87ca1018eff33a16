#include "worker/data/readers/custom_readers.h"

#include <gtest/gtest.h>

#include "examples/own_reader/libsvm.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/data/shards.h"
#include "worker/storage/file_storage.h"

namespace syncgrads {
namespace {

class CustomReadersTest : public testing::Test {
 protected:
  CustomReadersTest() {
    readers_.Add("libsvm", ReadLibsvm);
    spec_.mutable_custom()->set_kind("libsvm");
    spec_.set_partition(v1::DataSpec::CONTIGUOUS);
    (*spec_.mutable_custom()->mutable_settings())["path"] = "rows.txt";
    (*spec_.mutable_custom()->mutable_settings())["features"] = "3";
  }

  absl::StatusOr<WorkerData> Load(const std::string& contents, TargetKind kind, uint32_t rank = 0,
                                  uint32_t world_size = 1) {
    directory_.Write("rows.txt", contents);
    return LoadShards(spec_, std::make_shared<FileStorage>(directory_.path()),
                      {kind, rank, world_size}, readers_);
  }

  TemporaryDirectory directory_;
  CustomReaders readers_;
  v1::DataSpec spec_;
};

constexpr char kRows[] = "+1 1:0.5 3:-2\n# nothing\n-1 2:1e3  # why\n\n+1\n";

TEST_F(CustomReadersTest, WhatIsReadIsCutIntoShards) {
  const auto all = Load(kRows, TargetKind::kClass);
  SYNCGRADS_ASSERT_OK(all);
  const Table& table = all->shards[0].table;
  EXPECT_EQ(table.rows, 3u);
  EXPECT_EQ(table.features, (std::vector<double>{0.5, 0, -2, 0, 1000, 0, 0, 0, 0}));
  EXPECT_EQ(table.targets, (std::vector<double>{0, 1, 0}));
  ASSERT_EQ(table.classes.size(), 2u);
  EXPECT_EQ(table.classes[1].name, "-1");
  EXPECT_EQ(table.classes[1].place, directory_.path() + "/rows.txt:3");
  const auto second = Load(kRows, TargetKind::kNumber, 1, 2);
  SYNCGRADS_ASSERT_OK(second);
  EXPECT_EQ(second->shards[0].table.features, (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(second->shards[0].table.targets, (std::vector<double>{1}));
}

TEST_F(CustomReadersTest, WhatIsWrongIsNamedWithItsPlace) {
  ExpectError(Load("0 4:1\n", TargetKind::kNumber), absl::StatusCode::kInvalidArgument,
              {"rows.txt:1", "\"4:1\"", "from 1 to 3"});
  ExpectError(Load("0\n0 1:x\n", TargetKind::kNumber), absl::StatusCode::kInvalidArgument,
              {"rows.txt:2", "\"1:x\""});
  ExpectError(Load("zero\n", TargetKind::kNumber), absl::StatusCode::kInvalidArgument,
              {"rows.txt:1", "\"zero\""});
  (*spec_.mutable_custom()->mutable_settings())["features"] = "none";
  ExpectError(Load("0\n", TargetKind::kNumber), absl::StatusCode::kInvalidArgument, {"\"none\""});
}

TEST_F(CustomReadersTest, AnUnknownReaderIsRefusedWithThoseThatThereAre) {
  spec_.mutable_custom()->set_kind("arff");
  ExpectError(Load("", TargetKind::kNumber), absl::StatusCode::kInvalidArgument,
              {"unknown reader \"arff\"", "this program has libsvm"});
  ExpectError(NoCustomReaders().Read("arff", {}), absl::StatusCode::kInvalidArgument,
              {"this program has no custom readers"});
}

TEST_F(CustomReadersTest, ATableThatIsNoneIsRefused) {
  Table table;
  readers_.Add("broken", [&](const CustomReaderOptions&) { return table; });
  spec_.mutable_custom()->set_kind("broken");
  table.rows = 2;
  table.feature_names = {"a", "b"};
  table.features = {1, 2, 3};
  ExpectError(Load("", TargetKind::kNone), absl::StatusCode::kInvalidArgument,
              {"\"broken\"", "3 features", "need 4"});
  table.features = {1, 2, 3, 4};
  SYNCGRADS_EXPECT_OK(Load("", TargetKind::kNone));
  ExpectError(Load("", TargetKind::kClass), absl::StatusCode::kInvalidArgument,
              {"targets of the wrong kind"});
  table.target_kind = TargetKind::kClass;
  table.targets = {0, 1};
  table.classes = {{"only", "here"}};
  ExpectError(Load("", TargetKind::kClass), absl::StatusCode::kInvalidArgument,
              {"row 1 of class 1", "number of classes is 1"});
  spec_.set_weight_column("w");
  ExpectError(Load("", TargetKind::kClass), absl::StatusCode::kInvalidArgument,
              {"0 weights", "need 2"});
}

}  // namespace
}  // namespace syncgrads
