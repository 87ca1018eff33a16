#include "worker/team/replicas.h"

#include <gtest/gtest.h>

#include <mutex>

#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

// Compares the replicas of four workers with two parameters each. `change` can make them differ.
ReplicaCheck Compare(const std::function<void(uint32_t rank, Parameter<float>& b)>& change) {
  FakeJob job(4);
  std::mutex mutex;
  ReplicaCheck result;
  job.Run([&](Team& team) {
    HostMemory memory;
    auto a = Parameter<float>::Array(memory, "a", {2, 2});
    a.values.setConstant(1.5f);
    auto b = Parameter<float>::Vector(memory, "b", 3);
    change(team.rank(), b);
    Parameter<float>* parameters[] = {&a, &b};
    const auto check = CompareReplicas<float>(parameters, team);
    SYNCGRADS_ASSERT_OK(check);
    const std::lock_guard<std::mutex> lock(mutex);
    result = *check;
  });
  return result;
}

TEST(ReplicasTest, EqualBitsAreIdentical) {
  EXPECT_EQ(ToString(Compare([](uint32_t, Parameter<float>&) {})),
            "the 4 replicas are bit-identical");
}

TEST(ReplicasTest, AnotherBitIsNamedWithParameterAndWorker) {
  const ReplicaCheck check = Compare([](uint32_t rank, Parameter<float>& b) {
    if (rank == 2) b.values(0, 1) = 1e-45f;
  });
  EXPECT_FALSE(check.identical());
  EXPECT_EQ(ToString(check), "the 4 replicas differ: b on worker 2");
}

TEST(ReplicasTest, NegativeZeroIsAnotherBit) {
  EXPECT_FALSE(Compare([](uint32_t rank, Parameter<float>& b) {
                 if (rank == 0) b.values(0, 0) = -0.0f;
               }).identical());
}

}  // namespace
}  // namespace syncgrads
