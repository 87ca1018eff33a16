#include "worker/evaluation/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "worker/evaluation/evaluation.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/layers/dense.h"

namespace syncgrads {
namespace {

TEST(CountTopKTest, GivesTheWorkedNumbers) {
  const Matrix<double> scores{{.1, .7, .2}, {.5, .3, .2}, {.2, .3, .5}, {.6, .3, .1}};
  const std::vector<double> labels = {1, 1, 0, 0};  // counted from 1: 2, 2, 1, 1
  EXPECT_EQ(CountTopK(scores, labels, 1), 2u);      // accuracy 0.5
  EXPECT_EQ(CountTopK(scores, labels, 2), 3u);      // accuracy 0.75
  EXPECT_EQ(CountTopK(scores, labels, 3), 4u);      // accuracy 1
}

TEST(CountTopKTest, OfEqualScoresTheLowerColumnIsTheHigher) {
  const Matrix<float> scores{{1, 1}, {1, 1}};
  const std::vector<double> labels = {0, 1};
  EXPECT_EQ(CountTopK(scores, labels, 1), 1u);
}

TEST(CountTopKTest, ANaNIsLowerThanAnyNumber) {
  const Matrix<float> scores{{NAN, -1}, {-1, NAN}, {NAN, NAN}};
  EXPECT_EQ(CountTopK(scores, std::vector<double>{1, 0, 1}, 1), 2u);
}

TEST(AreaUnderCurveTest, IsTheShareOfPairsInTheRightOrder) {
  EXPECT_EQ(AreaUnderCurve({{0.1, false}, {0.4, false}, {0.35, true}, {0.8, true}}), 0.75);
  EXPECT_EQ(AreaUnderCurve({{1, false}, {2, true}}), 1);
  EXPECT_EQ(AreaUnderCurve({{2, false}, {1, true}}), 0);
}

TEST(AreaUnderCurveTest, EqualScoresCountAsOneHalf) {
  EXPECT_EQ(AreaUnderCurve({{1, false}, {1, true}}), 0.5);
  EXPECT_EQ(AreaUnderCurve({{1, false}, {1, true}, {1, true}, {0, false}}), 0.75);
}

TEST(AreaUnderCurveTest, NeedsRowsOfBothClassesAndNumbers) {
  EXPECT_EQ(AreaUnderCurve({}), std::nullopt);
  EXPECT_EQ(AreaUnderCurve({{1, true}}), std::nullopt);
  EXPECT_EQ(AreaUnderCurve({{1, true}, {NAN, false}}), std::nullopt);
}

// Two workers with scores in different ranges: in each worker's own rows the classes are
// separated, but not in all rows.
TEST(AreaUnderCurveTest, OfSeveralWorkersIsThatOfAllRowsAndNotTheMean) {
  const std::vector<std::vector<double>> scores = {{1, 2, 3, 4}, {11, 12, 13, 14}};
  const std::vector<std::vector<double>> labels = {{0, 0, 1, 1}, {0, 0, 0, 1}};
  std::vector<ScoredLabel> all;
  for (size_t worker = 0; worker < 2; ++worker) {
    std::vector<ScoredLabel> own;
    for (size_t i = 0; i < 4; ++i) own.push_back({scores[worker][i], labels[worker][i] == 1});
    EXPECT_EQ(AreaUnderCurve(own), 1.0);
    all.insert(all.end(), own.begin(), own.end());
  }
  // There are 15 pairs. The 6 pairs of the first worker's positives with the second's negatives are
  // in the wrong order.
  ASSERT_EQ(AreaUnderCurve(all), 9.0 / 15);
  FakeJob workers(2);
  workers.Run([&](Team& team) {
    CpuDevice<double> device(1);
    std::vector<std::unique_ptr<Layer<double>>> layers;
    DenseOptions options;
    options.outputs = 1;
    layers.push_back(*Dense<double>::Create("dense", device, Shape::Flat(1), options));
    Model<double> model(
        std::make_unique<Chain<double>>("model", device, Shape::Flat(1), std::move(layers)));
    model.parameters()[0]->values.setOnes();  // the score is the feature
    SYNCGRADS_ASSERT_OK(model.Upload());
    DataSet data;
    data.shape = Shape::Flat(1);
    Table& table = data.data.shards.emplace_back().table;
    table.rows = 4;
    table.feature_names = {"x"};
    table.features = scores[team.rank()];
    table.target_kind = TargetKind::kClass;
    table.targets = labels[team.rank()];
    v1::JobFile job;
    job.set_batch_size(3);
    RowsInBatches<double> source(job, job.data(), data, 2, DeviceChoice());
    Loss loss;
    loss.kind = LossKind::kSigmoidCrossEntropy;
    const auto evaluation =
        Evaluate("test", model, loss, source, RowsOf(data.data, 0, /*held_out=*/false), team);
    SYNCGRADS_ASSERT_OK(evaluation);
    EXPECT_EQ(evaluation->rows, 8u);
    EXPECT_EQ(evaluation->area_under_curve, 9.0 / 15);
  });
}

}  // namespace
}  // namespace syncgrads
