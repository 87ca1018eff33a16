// Rows in the form that a model needs.

#include "worker/batches/data_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/batches/batch_reader.h"
#include "worker/batches/batches.h"
#include "worker/evaluation/evaluation.h"
#include "worker/job/job_file.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/trainer_options.h"

namespace syncgrads {
namespace {

constexpr double kMean[] = {0.485, 0.456, 0.406};
constexpr double kStd[] = {0.229, 0.224, 0.225};

Job JobWith(const std::string& data) {
  const auto job = ParseJobFile(absl::StrCat(R"(
      name: "images" batch_size: 1 epochs: 1
      model { layers { flatten {} } layers { dense { outputs: 10 } } }
      loss { logit_cross_entropy {} }
      optimizer { sgd {} }
      data { )",
                                             data, "}"),
                                "images.job");
  SYNCGRADS_EXPECT_OK(job);
  return *job;
}

std::vector<double> FirstRowOf(const Job& job) {
  const auto data = LoadWholeDataSet(job, /*owners=*/1, /*rank=*/0);
  SYNCGRADS_EXPECT_OK(data);
  Matrix<double> row;
  std::vector<double> targets;
  SYNCGRADS_EXPECT_OK(ReadRows(*data, {{0, 0}}, ImageUse(), row, targets, nullptr));
  return {row.data(), row.data() + row.size()};
}

// Notes the rank of a request, and refuses it.
class NotedHost : public DataHost {
 public:
  absl::StatusOr<ServedData> Open(const ServedDataRequest& request) const override {
    rank = request.rank;
    return absl::UnavailableError("no rows");
  }
  mutable uint32_t rank = 0;
};

TEST(DataSetTest, AWorkerThatRequestsAllRowsDoesSoWithItsOwnRank) {
  Job job = JobWith("generated { rows: 12 }");
  const auto host = std::make_shared<NotedHost>();
  job.data_host = host;
  ExpectError(LoadWholeDataSet(job, /*owners=*/3, /*rank=*/2), absl::StatusCode::kUnavailable,
              {"no rows"});
  EXPECT_EQ(host->rank, 2u);
}

TEST(DataSetTest, EachChannelOfAnImageHasItsOwnMeanAndStandardDeviation) {
  const TemporaryDirectory directory;
  // A record of CIFAR-10: the label, and planes of red, green and blue.
  std::string record(1, '\3');
  for (const int value : {10, 120, 250}) record += std::string(32 * 32, static_cast<char>(value));
  const std::string path = directory.Write("batch.bin", record);
  const std::vector<double> row =
      FirstRowOf(JobWith(absl::StrCat("cifar10 { files: \"", path,
                                      "\" } image { mean: 0.485 mean: 0.456 mean: 0.406 "
                                      "std: 0.229 std: 0.224 std: 0.225 }")));
  ASSERT_EQ(row.size(), 3u * 32 * 32);
  const double values[] = {10, 120, 250};
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_NEAR(row[i], (values[i % 3] / 255 - kMean[i % 3]) / kStd[i % 3], 1e-6) << i;
  }
}

TEST(DataSetTest, TheColumnsOfATableAreAnImageChannelByChannel) {
  const TemporaryDirectory directory;
  const std::string path = directory.Write("table.csv", "r0,r1,g0,g1,b0,b1,class\n1,2,3,4,5,6,0\n");
  const std::vector<double> row = FirstRowOf(JobWith(
      absl::StrCat("table { path: \"", path,
                   "\" } target: \"class\" image { channels: 3 height: 1 width: 2 "
                   "mean: 0.485 mean: 0.456 mean: 0.406 std: 0.229 std: 0.224 std: 0.225 }")));
  const double values[] = {1, 3, 5, 2, 4, 6};
  ASSERT_EQ(row.size(), 6u);
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_NEAR(row[i], (values[i] - kMean[i % 3]) / kStd[i % 3], 1e-12) << i;
  }
}

Job TableJob(const TemporaryDirectory& directory, const std::string& more) {
  std::string rows = "x,class\n";
  const char* const classes[] = {"setosa", "virginica", "versicolor"};
  for (int i = 0; i < 12; ++i) absl::StrAppend(&rows, i, ",", classes[i / 4], "\n");
  const auto job = ParseJobFile(
      absl::StrCat(
          "name: \"table\" batch_size: 5 epochs: 2 model { layers { dense { outputs: 3 } } } "
          "loss { logit_cross_entropy {} } optimizer { sgd {} } data { table { path: \"",
          directory.Write("rows.csv", rows), "\" } target: \"class\" ", more, " }"),
      "table.job");
  SYNCGRADS_EXPECT_OK(job);
  return *job;
}

TEST(DataSetTest, TheClassesHaveTheOrderOfTheJobFile) {
  const TemporaryDirectory directory;
  SoleWorker alone;
  const auto sorted = LoadDataSet(TableJob(directory, ""), {}, alone);
  SYNCGRADS_ASSERT_OK(sorted);
  EXPECT_EQ(sorted->classes->names(),
            (std::vector<std::string>{"setosa", "versicolor", "virginica"}));
  const char* const kNames =
      "class_names: \"versicolor\" class_names: \"virginica\" class_names: \"setosa\"";
  const auto named = LoadDataSet(TableJob(directory, kNames), {}, alone);
  SYNCGRADS_ASSERT_OK(named);
  EXPECT_EQ(named->classes->names(),
            (std::vector<std::string>{"versicolor", "virginica", "setosa"}));
  EXPECT_EQ(named->data.shards[0].table.targets,
            (std::vector<double>{2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0}));
  ExpectError(LoadDataSet(TableJob(directory, "class_names: \"setosa\""), {}, alone),
              absl::StatusCode::kInvalidArgument, {"rows.csv:10: class \"versicolor\""});
}

TEST(DataSetTest, WithPartitionAllEveryWorkerTrainsOnAllRowsInAnOrderOfItsOwn) {
  const TemporaryDirectory directory;
  const Job job = TableJob(directory, "partition: ALL");
  std::vector<std::vector<size_t>> orders(3);
  FakeJob workers(3);
  workers.Run([&](Team& team) {
    const auto data = LoadDataSet(job, {}, team);
    SYNCGRADS_ASSERT_OK(data);
    const auto batches = MakeBatches(job.file, *data, OwnersOf(job.file, team, TrainerOptions()));
    SYNCGRADS_ASSERT_OK(batches);
    EXPECT_EQ((*batches)->StepsWith(3), 6u);  // two passes of 5, 5 and 2 rows
    for (; !(*batches)->ended(); (*batches)->Advance({})) {
      for (const RowId& row : (*batches)->RowsFor({})) orders[team.rank()].push_back(row.row);
    }
  });
  for (const std::vector<size_t>& order : orders) {
    ASSERT_EQ(order.size(), 24u);
    std::vector<size_t> pass(order.begin(), order.begin() + 12);
    std::sort(pass.begin(), pass.end());
    for (size_t i = 0; i < 12; ++i) EXPECT_EQ(pass[i], i);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[0], orders[2]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST(DataSetTest, WithPartitionAllThereMayBeMoreWorkersThanShardDirectories) {
  const TemporaryDirectory directory;
  for (int shard = 0; shard < 2; ++shard) {
    directory.Write(absl::StrCat("data/shard", shard, "/t.csv"),
                    absl::StrCat("x,class\n", shard, ",0\n", shard + 10, ",1\n"));
  }
  Job job = TableJob(directory, "partition: ALL");
  job.file.mutable_data()->mutable_table()->set_path(directory.path() + "/data");
  job.file.mutable_data()->mutable_table()->set_file("t.csv");
  FakeJob workers(3);
  workers.Run([&](Team& team) {
    const auto data = LoadDataSet(job, {}, team);
    SYNCGRADS_ASSERT_OK(data);
    ASSERT_EQ(data->data.shards.size(), 2u);
    EXPECT_EQ(data->data.shards[1].table.features, (std::vector<double>{1, 11}));
    // Together, the workers evaluate each row once.
    const std::vector<RowId> rows = RowsToEvaluate(*data, 0, /*held_out=*/false, team);
    EXPECT_EQ(rows.size(), team.rank() == 0 ? 2u : 1u);
  });
}

}  // namespace
}  // namespace syncgrads
