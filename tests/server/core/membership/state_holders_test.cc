#include "server/core/membership/state_holders.h"

#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

const GroupId kGroup{0};

TEST(StateHoldersTest, TheFirstMemberChoosesTheGroup) {
  StateHolders holders;
  EXPECT_FALSE(holders.group().has_value());
  EXPECT_EQ(holders.ChooseGroup(kGroup), kGroup);
  EXPECT_EQ(holders.ChooseGroup(GroupId{1}), kGroup);
  holders.SetEnded(MemberId{0}, GroupId{1});
  EXPECT_FALSE(holders.HasEnded(MemberId{0}));
  holders.SetEnded(MemberId{0}, kGroup);
  EXPECT_TRUE(holders.HasEnded(MemberId{0}));
}

TEST(StateHoldersTest, TheFirstMemberWithTheStateGivesItToAllThatAreBehind) {
  FakeClock clock;
  StateHolders holders;
  const std::vector<GroupRound> first_rounds = {{kGroup, Round{7}}};
  // Member 2 has a lower rank than the members 0 and 1 of the present epoch.
  const std::optional<Handover> handover = holders.PlanHandover(
      {MemberId{2}, MemberId{0}, MemberId{1}}, EpochOfSize(2), first_rounds, clock.Now());
  ASSERT_TRUE(handover.has_value());
  EXPECT_EQ(handover->donor, MemberId{0});
  EXPECT_EQ(handover->to, std::vector<MemberId>{MemberId{2}});
  EXPECT_EQ(handover->rounds, first_rounds);
  EXPECT_TRUE(holders.IsBehind(MemberId{2}));

  // The donor has gone. The newcomer still begins at the rounds of its first epoch.
  const std::optional<Handover> again = holders.PlanHandover(
      {MemberId{2}, MemberId{1}}, EpochOfSize(3), {{kGroup, Round{9}}}, clock.Now());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->donor, MemberId{1});
  EXPECT_EQ(again->rounds, first_rounds);

  EXPECT_TRUE(holders.SetReady(MemberId{2}));
  EXPECT_FALSE(holders.SetReady(MemberId{2})) << "it was not behind any more";
  EXPECT_FALSE(holders.IsBehind(MemberId{2}));
}

TEST(StateHoldersTest, TheStateIsLostWithTheLastMemberThatHadIt) {
  FakeClock clock;
  StateHolders holders;
  EXPECT_FALSE(
      holders.PlanHandover({MemberId{2}}, EpochOfSize(2), {{kGroup, Round{7}}}, clock.Now())
          .has_value());
}

TEST(StateHoldersTest, ANewcomerHasTheJoinTimeoutToBecomeReady) {
  FakeClock clock;
  StateHolders holders;
  const absl::Duration timeout = absl::Seconds(10);
  holders.Restore({MemberId{0}, {MemberId{2}}, {{kGroup, Round{7}}}}, clock.Now());
  clock.Advance(timeout);
  EXPECT_TRUE(holders.CheckJoined(MemberId{2}, clock.Now(), timeout).ok());
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(holders.CheckJoined(MemberId{2}, clock.Now(), timeout).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(holders.CheckJoined(MemberId{0}, clock.Now(), timeout).ok());
  holders.Forget(MemberId{2});
  EXPECT_TRUE(holders.CheckJoined(MemberId{2}, clock.Now(), timeout).ok());
}

}  // namespace
}  // namespace syncgrads::server
