// The learning rate factor of a job, as a trainer with the client library sees it. Clients and
// servers run in this process.

#include <array>
#include <string>
#include <variant>
#include <vector>

#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kWorkers = 3;
constexpr int64_t kElements = 64;
constexpr uint64_t kSteps = 12;

GroupSpec Model(const UpdateRule& rule) {
  GroupSpec spec{"model", {{"w", DType::kF32, {kElements}}}, rule};
  spec.chunk_bytes = 64;  // several chunks, on both servers
  return spec;
}

// The factors that a worker had, and the parameters that it ended with.
struct Course {
  std::vector<double> factors;
  std::vector<float> parameters;
};

// A worker makes kSteps steps with gradients of 1. Before the step `sets_before`, the worker of
// rank 1 sets the factor to 0.25, while the others go on.
Course Train(Client& client, Group& group, uint64_t sets_before) {
  Course course;
  course.parameters.assign(kElements, 0);
  std::vector<float>& values = course.parameters;
  const bool on_servers = std::holds_alternative<Optimizer>(group.spec().rule);
  void* memory = values.data();
  if (on_servers) {
    EXPECT_OK(group.Broadcast(0, absl::MakeSpan(&memory, 1), kTimeout));
  }
  EXPECT_EQ(group.learning_rate_factor(), 1);
  std::vector<float> gradient(kElements, 1), average(kElements);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    if (client.rank() == 1 && step == sets_before) {
      EXPECT_OK(client.SetLearningRateFactor(0.25, kTimeout));
    }
    void* const result = on_servers ? values.data() : average.data();
    EXPECT_OK(group.Push(TensorId{0}, gradient.data(), BytesOf(gradient), result));
    EXPECT_OK(group.Wait(TensorId{0}, kTimeout));
    const double early = group.learning_rate_factor();
    EXPECT_OK(group.WaitStep(kTimeout));
    const double factor = group.learning_rate_factor();
    EXPECT_EQ(early, factor) << "in step " << step;
    course.factors.push_back(factor);
    if (on_servers) continue;
    for (int64_t i = 0; i < kElements; ++i) values[i] -= static_cast<float>(factor) * average[i];
  }
  return course;
}

class LearningRateTest : public ::testing::Test {
 protected:
  std::array<Course, kWorkers> TrainAll(const GroupSpec& spec, uint64_t sets_before) {
    std::array<Course, kWorkers> courses;
    workers_.Run([&](uint32_t rank, Client& client) {
      const auto group = client.Register(spec, kTimeout);
      ASSERT_OK(group);
      courses[rank] = Train(client, **group, sets_before);
    });
    return courses;
  }

  Cluster cluster_{2};
  Workers workers_{cluster_, kWorkers};
};

void ExpectChangeOnce(const std::array<Course, kWorkers>& courses, uint64_t sets_before) {
  // The worker that sets the factor contributes to the step only afterwards, so that no step can
  // close in between.
  std::vector<double> expected(kSteps, 0.25);
  size_t first = 0;
  while (first < kSteps && courses[0].factors[first] == 1) expected[first++] = 1;
  // Others may have contributed to the step before the factor was set.
  EXPECT_GE(first + 1, sets_before);
  EXPECT_LE(first + 1, sets_before + 1);
  const float end = -static_cast<float>(first) - 0.25f * static_cast<float>(kSteps - first);
  for (const Course& course : courses) {
    EXPECT_EQ(course.factors, expected);
    EXPECT_EQ(course.parameters, std::vector<float>(kElements, end));
  }
}

TEST_F(LearningRateTest, AllMembersHaveTheSameFactorInTheSameStep) {
  GroupSpec spec = Model(Reduction::kAverage);
  spec.members_scale_rate = true;
  ExpectChangeOnce(TrainAll(spec, 5), 5);
}

TEST_F(LearningRateTest, AnOptimizerOnTheServersUsesIt) {
  ExpectChangeOnce(TrainAll(Model(Optimizer(Sgd{.learning_rate = 1})), 5), 5);
}

TEST_F(LearningRateTest, AGroupWithoutALearningRateHasNone) {
  workers_.Run([](uint32_t rank, Client& client) {
    ASSERT_OK(client.Register(Model(Reduction::kAverage), kTimeout));
    if (rank != 0) return;
    const absl::Status refused = client.SetLearningRateFactor(0.5, kTimeout);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("members_scale_rate"));
  });
}

TEST_F(LearningRateTest, AllMembersMustRegisterWhoScalesTheRate) {
  workers_.Run([](uint32_t rank, Client& client) {
    if (rank != 0) return;
    GroupSpec spec = Model(Reduction::kAverage);
    ASSERT_OK(client.Register(spec, kTimeout));
  });
  GroupSpec spec = Model(Reduction::kAverage);
  spec.members_scale_rate = true;
  const auto other = workers_[1].Register(spec, kTimeout);
  EXPECT_TRUE(absl::IsInvalidArgument(other.status())) << other.status();
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("has members_scale_rate 1 here"));
}

}  // namespace
}  // namespace syncgrads::testing
