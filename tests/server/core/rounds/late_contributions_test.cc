#include "server/core/rounds/late_contributions.h"

#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

constexpr MemberId kMember{7}, kOther{8};

TEST(LateContributionsTest, CountsAContributionOncePerRound) {
  LateContributions late(/*leaves_behind=*/true);
  late.AddLate(kMember, Round{3});
  late.AddLate(kMember, Round{3});
  late.AddLate(kOther, Round{3});
  EXPECT_EQ(late.count(), 2u);
  late.AddLate(kMember, Round{4});
  EXPECT_EQ(late.count(), 3u);
}

TEST(LateContributionsTest, ARetryOfASettledPushIsNotLate) {
  LateContributions late(/*leaves_behind=*/true);
  late.Settle(kMember, Round{5});
  late.AddLate(kMember, Round{5});
  late.AddLate(kMember, Round{4});
  EXPECT_EQ(late.count(), 0u);
}

TEST(LateContributionsTest, KeepsTheCountOfMembersThatHaveGone) {
  LateContributions late(/*leaves_behind=*/true);
  late.AddLate(kMember, Round{3});
  late.AddLate(kOther, Round{3});
  late.Forget([](MemberId member) { return member == kMember; });
  EXPECT_EQ(late.count(), 2u);
  late.AddLate(kOther, Round{3});
  EXPECT_EQ(late.count(), 2u) << "the other member's push is still settled";
}

TEST(LateContributionsTest, NothingIsLateIfRoundsWaitForAllMembers) {
  LateContributions late(/*leaves_behind=*/false);
  late.AddLate(kMember, Round{3});
  EXPECT_EQ(late.count(), 0u);
}

}  // namespace
}  // namespace syncgrads::server
