// Tests the counts of the rounds of a group, with chunks of both kinds.

#include "server/core/rounds/group_counts.h"

#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/rounds/chunk_versions.h"
#include "tests/server/core/rounds/chunk_rounds_fixture.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(DurationHistogramTest, CountsEachDurationInTheFirstBucketThatIsLongEnough) {
  DurationHistogram histogram;
  histogram.Add(absl::Microseconds(-5));
  histogram.Add(absl::Microseconds(999));
  histogram.Add(absl::Milliseconds(1));
  histogram.Add(absl::Microseconds(3999));
  histogram.Add(absl::Milliseconds(4));
  histogram.Add(absl::Milliseconds(16383));
  histogram.Add(absl::Milliseconds(16384));
  histogram.Add(absl::Hours(100));
  const DurationCounts counts = histogram.Read();
  EXPECT_THAT(counts.counts, ElementsAre(2, 2, 1, 0, 0, 0, 0, 1, 2));
  EXPECT_EQ(counts.sum_us, 999u + 1000 + 3999 + 4000 + 16'383'000 + 16'384'000 + 360'000'000'000);
}

class GroupCountsTest : public ::testing::Test {
 protected:
  // The number of a member's lags in each bucket; empty if nothing is counted of it.
  std::vector<uint64_t> LagsOf(uint32_t member) const {
    for (const ContributorCounts& counts : counts_.Contributors()) {
      if (counts.member != MemberId{member}) continue;
      return {counts.arrival_lag.counts.begin(), counts.arrival_lag.counts.end()};
    }
    return {};
  }

  GroupCounts counts_;
};

TEST_F(GroupCountsTest, TheLagOfAMemberIsItsDelayAfterTheFirstContribution) {
  Rounds rounds(3);
  rounds->CountIn(&counts_, /*is_first=*/true);
  rounds.Push(1, 1, 1.0);
  rounds.clock().Advance(absl::Milliseconds(2));
  rounds.Push(0, 1, 1.0);
  rounds.clock().Advance(absl::Milliseconds(30));
  rounds.Push(2, 1, 1.0);
  EXPECT_THAT(LagsOf(1), ElementsAre(1, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(LagsOf(0), ElementsAre(0, 1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(LagsOf(2), ElementsAre(0, 0, 0, 1, 0, 0, 0, 0, 0));
  EXPECT_EQ(counts_.Contributors()[2].arrival_lag.sum_us, 32'000u);
  EXPECT_THAT(counts_.round_duration().counts, ElementsAre(0, 0, 0, 1, 0, 0, 0, 0, 0));
  EXPECT_EQ(counts_.round_duration().sum_us, 32'000u);
}

TEST_F(GroupCountsTest, ARetryDoesNotCount) {
  Rounds rounds(2);
  rounds->CountIn(&counts_, /*is_first=*/true);
  rounds.Push(0, 1, 1.0);
  rounds.clock().Advance(absl::Seconds(1));
  rounds.Push(0, 1, 1.0);
  EXPECT_THAT(LagsOf(0), ElementsAre(1, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(GroupCountsTest, ASkipCountsUntilTheMembersDataHasEnded) {
  Rounds rounds(2);
  rounds->CountIn(&counts_, /*is_first=*/true);
  rounds.Skip(0, 1);
  rounds.Push(1, 1, 1.0);
  rounds.End(0, 1);
  rounds.Push(1, 2, 1.0);
  rounds.clock().Advance(absl::Minutes(1));
  rounds.Skip(0, 2);
  EXPECT_THAT(LagsOf(0), ElementsAre(1, 0, 0, 0, 0, 0, 0, 0, 0));
  ASSERT_THAT(counts_.Contributors(), SizeIs(2));
  EXPECT_EQ(counts_.Contributors()[0].round, Round{1}) << "round 2 has closed without its skip";
}

TEST_F(GroupCountsTest, OnlyClosedRoundsOfTheOtherChunksCount) {
  Rounds rounds(1);
  rounds->CountIn(&counts_, /*is_first=*/false);
  EXPECT_EQ(counts_.last_closed(), absl::InfinitePast());
  rounds.Push(0, 1, 1.0);
  rounds.clock().Advance(absl::Seconds(1));
  rounds.Push(0, 2, 1.0);
  EXPECT_EQ(counts_.rounds_closed(), 2u);
  EXPECT_EQ(counts_.last_closed(), rounds.clock().Now());
  EXPECT_EQ(counts_.rounds_per_second(rounds.clock().Now()), 0);
  EXPECT_THAT(counts_.Contributors(), IsEmpty());
  EXPECT_EQ(counts_.round_duration(), DurationCounts());
}

TEST_F(GroupCountsTest, AMemberThatHasGoneIsForgotten) {
  Rounds rounds(3);
  rounds->CountIn(&counts_, /*is_first=*/true);
  for (uint32_t member = 0; member < 3; ++member) rounds.Push(member, 1, 1.0);
  rounds.Drop(0);
  rounds.Leave(1, 1);
  ASSERT_THAT(counts_.Contributors(), SizeIs(1));
  EXPECT_EQ(counts_.Contributors()[0].member, MemberId{2});
  EXPECT_EQ(counts_.rounds_closed(), 1u);
}

TEST_F(GroupCountsTest, ContributionsThatAreNotFiniteCountInEveryChunk) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Rounds rounds(2, Reduction::kAverage);
  rounds->CountIn(&counts_, /*is_first=*/false);
  rounds.Push(0, 1, 1.0);
  rounds.Push(1, 1, kNaN);
  ASSERT_THAT(counts_.Contributors(), SizeIs(1));
  EXPECT_EQ(counts_.Contributors()[0].member, MemberId{1});
  EXPECT_EQ(counts_.Contributors()[0].non_finite, 1u);
}

TEST_F(GroupCountsTest, UnderStalenessVersionsAndClocksCountAndLagsDoNot) {
  FakeClock clock;
  GroupPlan plan = OneTensor(DType::kF64, 1, Sgd{.learning_rate = 1});
  plan.spec.policy = Staleness{};
  auto roster = std::make_shared<Roster>();
  roster->Add(EpochOfSize(2));
  const CurrentRoster current(roster);
  ChunkVersions versions(plan, ChunkId{0}, Generation{1}, current, clock);
  versions.CountIn(&counts_, /*is_first=*/true);
  const auto push = [&](uint32_t member, uint64_t at, double value) {
    versions.Push(PushOf(member, at), PayloadOf(BytesOf<double>({value})),
                  std::make_shared<RecordingSink>());
  };
  push(0, 0, 100);
  push(0, 1, 1);
  clock.Advance(absl::Seconds(1));
  push(1, 1, std::numeric_limits<double>::infinity());
  const std::vector<ContributorCounts> contributors = counts_.Contributors();
  ASSERT_THAT(contributors, SizeIs(2));
  EXPECT_EQ(contributors[0].round, Round{1});
  EXPECT_EQ(contributors[0].non_finite, 0u);
  EXPECT_EQ(contributors[1].non_finite, 1u);
  EXPECT_EQ(contributors[1].arrival_lag, DurationCounts());
  EXPECT_EQ(counts_.rounds_closed(), 2u) << "the initial parameters, and one update";
  EXPECT_EQ(counts_.round_duration(), DurationCounts());
}

}  // namespace
}  // namespace syncgrads::server
