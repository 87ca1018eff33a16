// Rows in the form that a model needs.

#include "worker/train/data_set.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/job/job_file.h"

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
  const auto data = LoadWholeDataSet(job, /*owners=*/1);
  SYNCGRADS_EXPECT_OK(data);
  std::vector<double> row(static_cast<size_t>(data->shape.size()));
  SYNCGRADS_EXPECT_OK(FillRow(*data, {0, 0}, ImageUse(), row.data()));
  return row;
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

}  // namespace
}  // namespace syncgrads
