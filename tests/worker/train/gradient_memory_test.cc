#include "worker/train/gradient_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "worker/nn/device_memory.h"
#include "worker/run/operations.h"

namespace syncgrads {
namespace {

// A device memory that cannot pin memory of the host.
class UnpinnableMemory : public HostMemory {
 public:
  absl::Status Pin(void*, size_t) override {
    return absl::ResourceExhaustedError("nothing more can be pinned");
  }
};

class GradientMemoryTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<GradientMemory<float>>> Create(DeviceMemory& device) {
    return GradientMemory<float>::Create(workers_.team(0), device, pointers_);
  }

  HostMemory host_;
  Parameter<float> kernel_ = Parameter<float>::Array(host_, "kernel", {3, 5});
  Parameter<float> bias_ = Parameter<float>::Vector(host_, "bias", 5);
  const std::vector<Parameter<float>*> pointers_ = {&kernel_, &bias_};
  FakeJob workers_{1};
};

TEST_F(GradientMemoryTest, HoldsAllGradientsInTheirOrderWithoutGaps) {
  kernel_.gradient.setConstant(7);
  const auto memory = Create(host_);
  SYNCGRADS_ASSERT_OK(memory);
  EXPECT_EQ(bias_.gradient.data(), kernel_.gradient.data() + 15);
  EXPECT_EQ(kernel_.gradient.rows(), 3);
  EXPECT_EQ(kernel_.gradient, (Matrix<float>::Zero(3, 5)));
  EXPECT_EQ(kernel_.device_gradient(), kernel_.gradient.data());
  EXPECT_EQ((*memory)->behind(), bias_.gradient.data() + 5);
}

TEST_F(GradientMemoryTest, GradientsStayWhereTheyAreIfThereIsNone) {
  const float* const before = kernel_.gradient.data();
  UnpinnableMemory unpinnable;
  ExpectError(Create(unpinnable), absl::StatusCode::kResourceExhausted, {"pinned"});
  EXPECT_EQ(kernel_.gradient.data(), before);
  workers_.RefuseGradients();
  ExpectError(Create(host_), absl::StatusCode::kResourceExhausted, {"no memory"});
  EXPECT_EQ(kernel_.gradient.data(), before);
}

TEST(TrainingWithGradientMemoryTest, PushesFromItOrSaysThatThereIsNone) {
  const auto job = LoadJobFile("examples/iris/iris.job");
  SYNCGRADS_ASSERT_OK(job);
  std::vector<std::string> models, notes;
  for (const bool refused : {false, true}) {
    FakeJob workers(1);
    if (refused) workers.RefuseGradients();
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    options.note = [&](const std::string& line) { notes.push_back(line); };
    const auto trained = RunTraining(*job, workers.team(0), options, /*output=*/"");
    SYNCGRADS_ASSERT_OK(trained);
    models.push_back(ToString(trained->trained_on));
    EXPECT_EQ(workers.pushed_from_elsewhere(), refused ? 6 * trained->steps : 0);
  }
  EXPECT_EQ(models[1], models[0]);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(absl::StrContains(notes[0], "gradients are not in shared memory")) << notes[0];
}

}  // namespace
}  // namespace syncgrads
