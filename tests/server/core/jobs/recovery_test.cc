#include "server/core/jobs/recovery.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

class RecoveryTest : public testing::Test {
 protected:
  // Returns a job of one member with one group.
  std::shared_ptr<Job> MakeJob(const std::string& name) {
    auto job = std::make_shared<Job>(name, "secret", Generation{3}, ServerIndex{0}, clock_);
    job->AddEpoch(EpochOfSize(1));
    job->AddGroup(std::make_shared<GroupPlan>(OneTensor(DType::kF32, 4, Reduction::kSum)));
    return job;
  }

  static void CloseRound(Job& job, uint64_t round) {
    PushHeader header = PushOf(0, round);
    header.generation = Generation{3};
    auto sink = std::make_shared<RecordingSink>();
    job.Push(header, PayloadOf(std::string(16, '\0')), sink);
    ASSERT_THAT(sink->error(), IsOk());
  }

  FakeClock clock_;
};

TEST_F(RecoveryTest, EndsWithTheFirstRoundOfAnyJob) {
  const auto a = MakeJob("a"), b = MakeJob("b");
  const Recovery recovery({a, b}, clock_.Now());
  EXPECT_EQ(recovery.jobs(), 2u);
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(recovery.duration(), absl::ZeroDuration());
  CloseRound(*b, 1);
  clock_.Advance(absl::Seconds(1));
  CloseRound(*b, 2);
  CloseRound(*a, 1);
  EXPECT_EQ(recovery.duration(), absl::Seconds(3));
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(recovery.duration(), absl::Seconds(3));
}

TEST_F(RecoveryTest, IsKnownAfterTheEndOfTheJob) {
  auto job = MakeJob("a");
  const Recovery recovery({job, MakeJob("closed before")}, clock_.Now());
  clock_.Advance(absl::Seconds(2));
  CloseRound(*job, 1);
  EXPECT_EQ(recovery.duration(), absl::Seconds(2));
  job = nullptr;
  EXPECT_EQ(recovery.duration(), absl::Seconds(2));
  EXPECT_EQ(recovery.jobs(), 2u);
}

TEST_F(RecoveryTest, AJobThatIsClosedBeforeItsFirstRoundHasNone) {
  auto job = MakeJob("a");
  const Recovery recovery({job}, clock_.Now());
  job = nullptr;
  EXPECT_EQ(recovery.duration(), absl::ZeroDuration());
}

}  // namespace
}  // namespace syncgrads::server
