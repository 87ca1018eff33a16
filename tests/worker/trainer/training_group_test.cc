// Results of the training group: where they are written, or left.

#include "worker/trainer/training_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tests/worker/testing/fake_team.h"
#include "tests/worker/trainer/iris_run.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

// Sets all gradients of a worker.
void SetGradients(IrisRun& iris, double value) {
  for (const HostParameter& parameter : iris.replica().parameters()) {
    auto* const gradient = reinterpret_cast<double*>(parameter.gradient.data);
    std::fill_n(gradient, parameter.gradient.elements, value);
  }
}

TEST(TrainingGroupTest, AResultIsWrittenOverTheGradientOrLeftInPlace) {
  for (const bool in_place : {false, true}) {
    FakeJob workers(2);
    workers.Run([&](Team& team) {
      IrisRun iris(IrisJob(""), team);
      const auto registered = TrainingGroup::Register(*iris.run, iris.replica());
      SYNCGRADS_ASSERT_OK(registered);
      TrainingGroup& group = **registered;
      if (in_place) group.LeaveResultsInPlace();
      const double own = team.rank() == 0 ? 1 : 4;
      SetGradients(iris, own);
      group.Begin();
      SYNCGRADS_ASSERT_OK(group.PushAll());
      const auto contributors = group.WaitStep(kTimeout);
      SYNCGRADS_ASSERT_OK(contributors);
      for (size_t i = 0; i < iris.replica().parameters().size(); ++i) {
        EXPECT_EQ((*contributors)[ToNumber(group.tensor(i))].most, 2u);
        const MutableTensor& gradient = iris.replica().parameters()[i].gradient;
        const double first = *reinterpret_cast<const double*>(gradient.data);
        EXPECT_EQ(first, in_place ? own : 2.5);
        if (!in_place) continue;
        const auto pieces = group.Result(i);
        SYNCGRADS_ASSERT_OK(pieces);
        size_t bytes = 0;
        for (const absl::Span<const std::byte> piece : *pieces) {
          bytes += piece.size();
          EXPECT_EQ(*reinterpret_cast<const double*>(piece.data()), 2.5);
        }
        EXPECT_EQ(bytes, gradient.elements * sizeof(double));
      }
    });
  }
}

TEST(TrainingGroupTest, WhatHasNotBeenPushedIsSkipped) {
  FakeJob workers(2);
  workers.Run([&](Team& team) {
    IrisRun iris(IrisJob(""), team);
    const auto registered = TrainingGroup::Register(*iris.run, iris.replica());
    SYNCGRADS_ASSERT_OK(registered);
    TrainingGroup& group = **registered;
    group.LeaveResultsInPlace();
    SetGradients(iris, team.rank());
    group.Begin();
    if (team.rank() == 1) {
      SYNCGRADS_ASSERT_OK(group.Push(0));
    }
    SYNCGRADS_ASSERT_OK(group.SkipRest());
    const auto contributors = group.WaitStep(kTimeout);
    SYNCGRADS_ASSERT_OK(contributors);
    EXPECT_EQ((*contributors)[ToNumber(group.tensor(0))].most, 1u);
    EXPECT_EQ((*contributors)[ToNumber(group.tensor(1))].most, 0u);
    const auto none = group.Result(1);
    SYNCGRADS_ASSERT_OK(none);
    EXPECT_TRUE(none->empty());
  });
}

}  // namespace
}  // namespace syncgrads
