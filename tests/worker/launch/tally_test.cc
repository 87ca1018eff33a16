#include "worker/launch/tally.h"

#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using Verdict = Tally::Verdict;

End Exited(Role role, int rank, int code) { return {.role = role, .rank = rank, .code = code}; }
End Killed(Role role, int rank, int signal) {
  return {.role = role, .rank = rank, .signal = signal};
}

TEST(TallyTest, SucceedsWhenTheLastWorkerHasFinished) {
  Tally tally(2, OnWorkerDeath::kEndGroup);
  tally.Add(Exited(Role::kWorker, 1, 0));
  EXPECT_EQ(tally.verdict(), Verdict::kRunning);
  tally.Add(Exited(Role::kWorker, 0, 0));
  EXPECT_EQ(tally.verdict(), Verdict::kSucceeded);
  EXPECT_EQ(tally.exit_code(), 0);
}

TEST(TallyTest, AServerMayFinishBeforeTheWorkers) {
  Tally tally(1, OnWorkerDeath::kEndGroup);
  tally.Add(Exited(Role::kServer, 0, 0));
  EXPECT_EQ(tally.verdict(), Verdict::kRunning);
}

TEST(TallyTest, AServersFailureIsTheGroups) {
  Tally tally(1, OnWorkerDeath::kContinue);
  tally.Add(Exited(Role::kServer, 1, 200));
  EXPECT_EQ(tally.verdict(), Verdict::kFailed);
  EXPECT_EQ(tally.exit_code(), 200);
}

TEST(TallyTest, AWorkersPermanentFailureIsTheGroups) {
  Tally tally(2, OnWorkerDeath::kContinue);
  tally.Add(Exited(Role::kWorker, 1, 127));
  EXPECT_EQ(tally.verdict(), Verdict::kFailed);
  EXPECT_EQ(tally.exit_code(), 127);
}

TEST(TallyTest, OnlyTheFirstFailureCounts) {
  Tally tally(2, OnWorkerDeath::kContinue);
  tally.Add(Exited(Role::kWorker, 1, 2));
  tally.Add(Exited(Role::kWorker, 0, 3));
  EXPECT_EQ(tally.exit_code(), 2);
}

TEST(TallyTest, OthersMayFinishWithoutADeadWorker) {
  for (const End& death : {Killed(Role::kWorker, 0, 9), Exited(Role::kWorker, 0, 128)}) {
    Tally tally(2, OnWorkerDeath::kContinue);
    tally.Add(death);
    EXPECT_EQ(tally.verdict(), Verdict::kRunning);
    tally.Add(Exited(Role::kWorker, 1, 0));
    EXPECT_EQ(tally.verdict(), Verdict::kSucceeded);
    EXPECT_EQ(tally.exit_code(), 0);
  }
}

TEST(TallyTest, ADeadWorkerEndsTheGroupIfItShould) {
  Tally tally(2, OnWorkerDeath::kEndGroup);
  tally.Add(Killed(Role::kWorker, 0, 9));
  EXPECT_EQ(tally.verdict(), Verdict::kFailed);
  EXPECT_EQ(tally.exit_code(), 137);
}

TEST(TallyTest, AGroupWhoseWorkersAreAllDeadHasFailed) {
  Tally tally(2, OnWorkerDeath::kContinue);
  tally.Add(Killed(Role::kWorker, 0, 9));
  tally.Add(Exited(Role::kWorker, 1, 130));
  EXPECT_EQ(tally.verdict(), Verdict::kFailed);
  EXPECT_EQ(tally.exit_code(), 130);
}

TEST(TallyTest, DescribesEndsInWords) {
  EXPECT_EQ(Describe(Exited(Role::kWorker, 2, 3)), "worker 2 ended with exit code 3");
  EXPECT_EQ(Describe(Killed(Role::kServer, 0, 9)), "server 0 was killed by signal 9 (Killed)");
}

TEST(TallyTest, AWorkerThatDiesIsStartedAgainUntilOneHasFinished) {
  Tally tally(2, OnWorkerDeath::kRestart);
  const End died = {.role = Role::kWorker, .rank = 0, .signal = 9};
  EXPECT_TRUE(tally.Restarts(died));
  EXPECT_FALSE(tally.Restarts({.role = Role::kWorker, .rank = 1, .code = 2}));
  EXPECT_FALSE(tally.Restarts({.role = Role::kServer, .rank = 0, .signal = 9}));
  tally.Add({.role = Role::kWorker, .rank = 1, .code = 0});
  EXPECT_FALSE(tally.Restarts(died));
}

TEST(TallyTest, AWorkerThatKeepsDyingIsGivenUp) {
  Tally tally(2, OnWorkerDeath::kRestart);
  const End died = {.role = Role::kWorker, .rank = 0, .code = 204};
  for (int i = 0; i < Tally::kMaxRestarts; ++i) EXPECT_TRUE(tally.Restarts(died));
  EXPECT_FALSE(tally.Restarts(died));
}

}  // namespace
}  // namespace syncgrads
