#include "worker/train/parameter_average.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/worker/testing/status.h"
#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {
namespace {

SavedTensor Tensor(const std::string& name, const std::string& bytes) {
  return {{name, DType::kF32, {1}}, bytes};
}

TEST(ParameterAverageTest, TheDecayRisesToItsValue) {
  EXPECT_EQ(DecayOf(0.9, 1), 2.0 / 11);
  EXPECT_EQ(DecayOf(0.9, 79), 80.0 / 89);
  EXPECT_EQ(DecayOf(0.9, 1000), 0.9);
}

TEST(ParameterAverageTest, IsThatOfAPlainLoop) {
  CpuDevice<double> device(1);
  std::vector<Parameter<double>> parameters;
  parameters.push_back(Parameter<double>::Array(device.memory(), "w", {2, 2}));
  parameters.push_back(Parameter<double>::Vector(device.memory(), "b", 1));
  v1::MovingAverage spec;
  spec.set_decay(0.5);
  spec.set_every_steps(2);
  Parameter<double>* const pointers[] = {&parameters[0], &parameters[1]};
  const auto average = ParameterAverage<double>::Create(spec, device, pointers);
  SYNCGRADS_ASSERT_OK(average);
  EXPECT_TRUE((*average)->is_model());
  double w = 3, want = 3;
  parameters[0].values.setConstant(w);
  (*average)->Begin();
  for (int step = 1; step <= 20; ++step) {
    w = w * 0.75 + step;
    parameters[0].values.setConstant(w);
    (*average)->Update(step);
    if (step % 2 == 0) {
      const double decay = std::min(0.5, (1 + step / 2.0) / (10 + step / 2.0));
      want = decay * want + (1 - decay) * w;
    }
  }
  SYNCGRADS_ASSERT_OK((*average)->Fetch());
  const std::vector<NamedTensor> state = (*average)->state();
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].spec, (TensorSpec{"average/w", DType::kF64, {2, 2}}));
  EXPECT_NEAR(static_cast<const double*>(state[0].data)[3], want, 1e-12);

  SYNCGRADS_ASSERT_OK((*average)->Exchange());
  EXPECT_NEAR(parameters[0].values(1, 1), want, 1e-12);
  EXPECT_EQ(static_cast<const double*>(state[0].data)[3], w);
  SYNCGRADS_ASSERT_OK((*average)->Exchange());
  EXPECT_EQ(parameters[0].values(1, 1), w);
}

TEST(ParameterAverageTest, ASnapshotHasTheAverageAsItsModelAndGivesTheParametersBack) {
  std::string of_w = "AAAA", of_b = "BBBB";
  const NamedTensor averages[] = {{{"average/w", DType::kF32, {1}}, of_w.data()},
                                  {{"average/b", DType::kF32, {1}}, of_b.data()}};
  Snapshot snapshot;
  snapshot.model = {Tensor("w", "wwww"), Tensor("b", "bbbb"), Tensor("frozen", "ffff")};
  snapshot.training = {Tensor("optimizer/0/w", "oooo")};
  UseAverages(averages, snapshot);
  EXPECT_EQ(snapshot.FindNamed("w")->bytes, "AAAA");
  EXPECT_EQ(snapshot.FindNamed("b")->bytes, "BBBB");
  EXPECT_EQ(snapshot.FindNamed("frozen")->bytes, "ffff");
  EXPECT_EQ(snapshot.FindNamed("average/w"), nullptr);

  Snapshot separate = snapshot;
  SeparateAverages(averages, separate);
  EXPECT_EQ(separate.FindNamed("w")->bytes, "wwww");
  EXPECT_EQ(separate.FindNamed("average/b")->bytes, "BBBB");
  EXPECT_EQ(separate.training.size(), 3u);
  // A job file without an average takes the parameters.
  SeparateAverages({}, snapshot);
  EXPECT_EQ(snapshot.FindNamed("b")->bytes, "bbbb");
}

TEST(ParameterAverageTest, AnAverageThatASnapshotDoesNotHaveBeginsWithTheParameter) {
  std::string unused = "AAAA";
  const NamedTensor averages[] = {{{"average/w", DType::kF32, {1}}, unused.data()}};
  Snapshot snapshot;
  snapshot.model = {Tensor("w", "wwww")};
  SeparateAverages(averages, snapshot);
  EXPECT_EQ(snapshot.FindNamed("average/w")->bytes, "wwww");
}

}  // namespace
}  // namespace syncgrads
