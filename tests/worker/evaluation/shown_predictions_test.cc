#include "worker/evaluation/shown_predictions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/layers/dense.h"

namespace syncgrads {
namespace {

// A model that has the same outputs for every row.
class ConstantModel {
 public:
  explicit ConstantModel(const std::vector<double>& outputs) {
    DenseOptions options;
    options.outputs = static_cast<int64_t>(outputs.size());
    std::vector<std::unique_ptr<Layer<double>>> layers;
    layers.push_back(*Dense<double>::Create("dense", device_, Shape::Flat(1), options));
    model_ = std::make_unique<Model<double>>(
        std::make_unique<Chain<double>>("model", device_, Shape::Flat(1), std::move(layers)));
    model_->parameters()[0]->values.setZero();
    for (size_t i = 0; i < outputs.size(); ++i) {
      model_->parameters()[1]->values.data()[i] = outputs[i];
    }
    SYNCGRADS_EXPECT_OK(model_->Upload());
  }

  Model<double>& operator*() { return *model_; }

 private:
  CpuDevice<double> device_{1};
  std::unique_ptr<Model<double>> model_;
};

DataSet RowsOfShard(uint32_t number, const std::vector<double>& targets) {
  DataSet data;
  data.shape = Shape::Flat(1);
  data.data.total_shards = 2;
  Shard& shard = data.data.shards.emplace_back();
  shard.number = number;
  shard.table.rows = targets.size();
  shard.table.feature_names = {"x"};
  shard.table.features.assign(targets.size(), 0);
  shard.table.target_kind = TargetKind::kClass;
  shard.table.targets = targets;
  return data;
}

// Reads all rows of `data` at once.
RowsInBatches<double> SourceOf(const DataSet& data) {
  v1::JobFile job;
  job.set_batch_size(10);
  return RowsInBatches<double>(job, job.data(), data, 1, DeviceChoice());
}

TEST(ShownPredictionsTest, TheRightClassIsMarkedWhereverItIs) {
  std::vector<double> outputs;
  for (const double p : {0.05, 0.3, 0.2, 0.1, 0.15, 0.08, 0.12}) outputs.push_back(std::log(p));
  DataSet data = RowsOfShard(0, {2, 0});
  data.data.shards[0].table.class_descriptions = {"tench", "goldfish", "white shark"};
  ConstantModel model(outputs);
  SoleWorker alone;
  RowsInBatches<double> source = SourceOf(data);
  const auto text = ShowPredictions(*model, Loss(), data, source, {.rows = 10}, alone);
  SYNCGRADS_ASSERT_OK(text);
  EXPECT_EQ(*text,
            "shard 0, row 0: 2: white shark\n"
            "     30.0 %  1: goldfish\n"
            "  *  20.0 %  2: white shark\n"
            "     15.0 %  4\n"
            "     12.0 %  6\n"
            "     10.0 %  3\n"
            "shard 0, row 1: 0: tench\n"
            "     30.0 %  1: goldfish\n"
            "     20.0 %  2: white shark\n"
            "     15.0 %  4\n"
            "     12.0 %  6\n"
            "     10.0 %  3\n"
            "  *   5.0 %  0: tench (place 7)\n");
  const auto first =
      ShowPredictions(*model, Loss(), data, source, {.rows = 1, .classes = 1}, alone);
  SYNCGRADS_ASSERT_OK(first);
  EXPECT_EQ(*first,
            "shard 0, row 0: 2: white shark\n"
            "     30.0 %  1: goldfish\n"
            "  *  20.0 %  2: white shark (place 2)\n");
}

TEST(ShownPredictionsTest, TheFirstRowsOfAllWorkersAreShown) {
  FakeJob workers(2);
  workers.Run([&](Team& team) {
    Loss loss;
    loss.kind = LossKind::kSigmoidCrossEntropy;
    DataSet data = RowsOfShard(1 - team.rank(), {1, 0});
    data.classes = Classes::Named({"below", "above"});
    ConstantModel model(std::vector<double>{0});
    RowsInBatches<double> source = SourceOf(data);
    const auto text = ShowPredictions(*model, loss, data, source, {.rows = 3}, team);
    SYNCGRADS_ASSERT_OK(text);
    EXPECT_EQ(*text,
              "shard 0, row 0: above\n"
              "     50.0 %  below\n"
              "  *  50.0 %  above\n"
              "shard 0, row 1: below\n"
              "  *  50.0 %  below\n"
              "     50.0 %  above\n"
              "shard 1, row 0: above\n"
              "     50.0 %  below\n"
              "  *  50.0 %  above\n");
  });
}

TEST(ShownPredictionsTest, NumbersAreShownBesideWhatIsRight) {
  Loss loss;
  loss.kind = LossKind::kSquaredError;
  DataSet data = RowsOfShard(0, {5, 1.5});
  data.data.shards[0].table.target_kind = TargetKind::kNumber;
  ConstantModel model(std::vector<double>{4.5});
  SoleWorker alone;
  RowsInBatches<double> source = SourceOf(data);
  const auto text = ShowPredictions(*model, loss, data, source, {.rows = 1}, alone);
  SYNCGRADS_ASSERT_OK(text);
  EXPECT_EQ(*text, "shard 0, row 0: 4.5, is 5\n");
}

}  // namespace
}  // namespace syncgrads
