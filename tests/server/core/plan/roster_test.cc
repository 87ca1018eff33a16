#include "server/core/plan/roster.h"

#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

const GroupId kGroup{0};
const GroupId kOther{1};

Epoch WithoutMember(uint32_t gone, uint64_t first_round) {
  Epoch epoch = EpochOfSize(3);
  epoch.number = 2;
  std::erase_if(epoch.members, [gone](const Member& m) { return m.id == MemberId{gone}; });
  epoch.first_rounds = {{kGroup, Round{first_round}}};
  return epoch;
}

MemberGone Left(uint32_t member, uint64_t last_round) {
  return {MemberId{member}, IncarnationOf(member), "left", true, {{kGroup, Round{last_round}}}};
}

MemberGone Dropped(uint32_t member) {
  return {MemberId{member}, IncarnationOf(member), "lease ended", false, {}};
}

TEST(RosterTest, KnowsNobodyBeforeTheFirstEpoch) {
  const Roster roster;
  EXPECT_EQ(roster.Find(MemberId{0}), nullptr);
  EXPECT_EQ(roster.EpochOf(kGroup, Round{1}), nullptr);
  EXPECT_EQ(roster.newest_epoch(), nullptr);
}

TEST(RosterTest, TheEpochIsAFunctionOfTheRound) {
  Roster roster;
  roster.Add(EpochOfSize(3));
  roster.Add(WithoutMember(1, 7));
  EXPECT_EQ(roster.EpochOf(kGroup, Round{0})->number, 1u);
  EXPECT_EQ(roster.EpochOf(kGroup, Round{6})->number, 1u);
  EXPECT_EQ(roster.EpochOf(kGroup, Round{7})->number, 2u);
  EXPECT_EQ(roster.EpochOf(kGroup, Round{1000})->number, 2u);
  // A group that was registered in the newest epoch belongs to this epoch from its first round on.
  EXPECT_EQ(roster.EpochOf(kOther, Round{0})->number, 2u);
}

TEST(RosterTest, TheRoundBeforeTheNextEpochIsTheLastOfThisOne) {
  Roster roster;
  roster.Add(EpochOfSize(3));
  EXPECT_EQ(roster.LastRoundBeforeNextEpoch(kGroup, Round{2}), Round{2});
  roster.Add(WithoutMember(1, 7));
  Epoch third = WithoutMember(1, 9);
  third.number = 3;
  roster.Add(third);
  EXPECT_EQ(roster.LastRoundBeforeNextEpoch(kGroup, Round{2}), Round{6});
  EXPECT_EQ(roster.LastRoundBeforeNextEpoch(kGroup, Round{7}), Round{8});
  EXPECT_EQ(roster.LastRoundBeforeNextEpoch(kGroup, Round{9}), Round{9});
  EXPECT_EQ(roster.LastRoundBeforeNextEpoch(kOther, Round{2}), Round{2});
}

TEST(RosterTest, AMemberThatEndedHasDataUpToItsLastRound) {
  Roster roster;
  roster.Add(EpochOfSize(2));
  roster.End({MemberId{1}, kGroup, Round{4}, true});
  const Roster::Entry& entry = *roster.Find(MemberId{1});
  EXPECT_TRUE(entry.HasData(kGroup, Round{4}));
  EXPECT_FALSE(entry.HasData(kGroup, Round{5}));
  EXPECT_TRUE(entry.HasData(kOther, Round{5}));
  EXPECT_FALSE(entry.Follows(kGroup, Round{4}));
  EXPECT_TRUE(entry.Follows(kGroup, Round{5}));
}

TEST(RosterTest, AMemberThatEndsWithoutUpdatesDoesNotFollow) {
  Roster roster;
  roster.Add(EpochOfSize(2));
  roster.End({MemberId{1}, kGroup, Round{4}, false});
  EXPECT_FALSE(roster.Find(MemberId{1})->Follows(kGroup, Round{5}));
  EXPECT_FALSE(roster.Find(MemberId{1})->HasData(kGroup, Round{5}));
}

TEST(RosterTest, AMemberThatWasDroppedHasNoData) {
  Roster roster;
  roster.Add(EpochOfSize(2));
  roster.Remove(Dropped(1));
  EXPECT_FALSE(roster.Find(MemberId{1})->HasData(kGroup, Round{1}));
  EXPECT_TRUE(roster.Find(MemberId{0})->HasData(kGroup, Round{1}));
}

TEST(RosterTest, AMemberThatLeftHasDataUpToItsLastRoundsAndFollowsNothing) {
  Roster roster;
  roster.Add(EpochOfSize(2));
  roster.Remove(Left(1, 4));
  const Roster::Entry& entry = *roster.Find(MemberId{1});
  EXPECT_TRUE(entry.HasData(kGroup, Round{4}));
  EXPECT_FALSE(entry.HasData(kGroup, Round{5}));
  EXPECT_FALSE(entry.Follows(kGroup, Round{5}));
  // The member took no part in a group that its leave does not name.
  EXPECT_FALSE(entry.HasData(kOther, Round{1}));
}

TEST(RosterTest, TheEarlierOfAnEndAndALeaveCounts) {
  for (const bool end_first : {true, false}) {
    Roster roster;
    roster.Add(EpochOfSize(2));
    roster.End({MemberId{1}, kGroup, Round{3}, true});
    roster.Remove(Left(1, end_first ? 9 : 2));
    const Roster::Entry& entry = *roster.Find(MemberId{1});
    EXPECT_EQ(entry.HasData(kGroup, Round{3}), end_first);
    EXPECT_TRUE(entry.HasData(kGroup, Round{2}));
    EXPECT_FALSE(entry.HasData(kGroup, Round{4}));
  }
}

// Messages about different members and about an epoch may arrive in any order.
TEST(RosterTest, DoesNotDependOnTheOrderOfNews) {
  const std::vector<std::function<void(Roster&)>> news = {
      [](Roster& roster) {
        roster.End({MemberId{0}, kGroup, Round{5}, true});
      },
      [](Roster& roster) { roster.Remove(Dropped(1)); },
      [](Roster& roster) { roster.Remove(Left(2, 6)); },
      [](Roster& roster) { roster.Add(WithoutMember(1, 4)); },
  };
  std::vector<int> order = {0, 1, 2, 3};
  std::vector<bool> first;
  do {
    Roster roster;
    roster.Add(EpochOfSize(3));
    for (int index : order) news[index](roster);
    std::vector<bool> facts;
    for (uint32_t member = 0; member < 3; ++member) {
      for (uint64_t round = 0; round < 10; ++round) {
        const Roster::Entry& entry = *roster.Find(MemberId{member});
        facts.push_back(entry.HasData(kGroup, Round{round}));
        facts.push_back(entry.Follows(kGroup, Round{round}));
        facts.push_back(roster.EpochOf(kGroup, Round{round})->number == 2);
      }
    }
    if (first.empty()) first = facts;
    EXPECT_EQ(facts, first);
  } while (std::next_permutation(order.begin(), order.end()));
}

// A member left gracefully, but its claimed contributions do not arrive: it is dropped.
TEST(RosterTest, AMemberThatLeftAndIsThenDroppedHasNoData) {
  Roster roster;
  roster.Add(EpochOfSize(2));
  roster.Remove(Left(1, uint64_t{1} << 60));
  EXPECT_TRUE(roster.Find(MemberId{1})->HasData(kGroup, Round{5}));
  roster.Remove(Dropped(1));
  EXPECT_FALSE(roster.Find(MemberId{1})->HasData(kGroup, Round{5}));
}

TEST(RosterTest, ForgetsEpochsBeforeAllOpenRounds) {
  Roster roster;
  roster.Add(EpochOfSize(3));
  roster.Remove(Dropped(1));
  roster.Add(WithoutMember(1, 7));
  roster.Forget({{kGroup, Round{6}}});
  EXPECT_EQ(roster.EpochOf(kGroup, Round{6})->number, 1u);
  ASSERT_NE(roster.Find(MemberId{1}), nullptr);
  // Round 2 of the other group may still be open in the first epoch.
  Epoch third = WithoutMember(1, 9);
  third.number = 3;
  third.first_rounds.push_back({kOther, Round{3}});
  Roster two = roster;
  two.Add(third);
  two.Forget({{kGroup, Round{9}}, {kOther, Round{2}}});
  EXPECT_EQ(two.EpochOf(kOther, Round{2})->number, 2u);
  roster.Forget({{kGroup, Round{7}}});
  EXPECT_EQ(roster.EpochOf(kGroup, Round{6}), nullptr);
  EXPECT_EQ(roster.EpochOf(kGroup, Round{7})->number, 2u);
  EXPECT_EQ(roster.Find(MemberId{1}), nullptr) << "it has gone, and no epoch has it";
  EXPECT_NE(roster.Find(MemberId{0}), nullptr);
}

TEST(RosterTest, AnEpochToWhichNoRoundBelongsIsForgotten) {
  Roster roster;
  const auto begin = [&roster](uint64_t number, std::vector<GroupRound> first_rounds) {
    Epoch epoch = EpochOfSize(3);
    epoch.number = number;
    epoch.first_rounds = std::move(first_rounds);
    roster.Add(epoch);
  };
  begin(1, {});
  // Round 4 is open for as long as the epochs 2 to 100 begin.
  for (uint64_t number = 2; number <= 100; ++number) begin(number, {{kGroup, Round{5}}});
  EXPECT_EQ(roster.EpochOf(kGroup, Round{4})->number, 1u);
  EXPECT_EQ(roster.EpochOf(kGroup, Round{5})->number, 100u);
  // Group 1 was registered in epoch 100; its rounds before 3 were made then.
  begin(101, {{kGroup, Round{5}}, {kOther, Round{3}}});
  EXPECT_EQ(roster.EpochOf(kOther, Round{2})->number, 100u);
  EXPECT_EQ(roster.EpochOf(kGroup, Round{4})->number, 1u);
  EXPECT_EQ(roster.EpochOf(kGroup, Round{5})->number, 101u);
  // Without any round of group 1, epoch 101 is not needed.
  begin(102, {{kGroup, Round{5}}, {kOther, Round{3}}});
  roster.KeepNewest(3);
  EXPECT_EQ(roster.oldest_epoch(), 1u) << "epochs 1, 100 and 102 are left";
  roster.KeepNewest(2);
  EXPECT_EQ(roster.oldest_epoch(), 100u);
}

TEST(RosterTest, KeepsTheNewestEpochAndWhoIsNotGone) {
  Roster roster;
  roster.Add(EpochOfSize(3));
  roster.Add(WithoutMember(1, 7));  // the removal of member 1 has not arrived yet
  roster.Forget({});
  EXPECT_EQ(roster.newest_epoch()->number, 2u);
  ASSERT_NE(roster.Find(MemberId{1}), nullptr);
  roster.Remove(Dropped(1));
  roster.Forget({});
  EXPECT_EQ(roster.Find(MemberId{1}), nullptr);
}

// The memory of a job does not grow with the number of members that it has ever had.
TEST(RosterTest, ManyMembersOverTimeLeaveNothing) {
  Roster roster;
  for (uint32_t turn = 0; turn < 1000; ++turn) {
    Epoch epoch;
    epoch.number = turn + 1;
    epoch.members = {{MemberId{turn}, "w", IncarnationOf(turn)}};
    epoch.first_rounds = {{kGroup, Round{turn + 1}}};
    if (turn > 0) roster.Remove(Dropped(turn - 1));
    roster.Add(epoch);
    roster.Forget({{kGroup, Round{turn + 1}}});
    if (turn > 0) {
      EXPECT_EQ(roster.Find(MemberId{turn - 1}), nullptr);
      EXPECT_EQ(roster.EpochOf(kGroup, Round{turn}), nullptr);
    }
  }
}

TEST(RosterTest, OfManyEvictedMembersTheNewestAreListed) {
  Roster roster;
  for (uint32_t turn = 0; turn < 3000; ++turn) {
    Epoch epoch;
    epoch.number = turn + 1;
    epoch.members = {{MemberId{turn}, "w", IncarnationOf(turn)}};
    roster.Add(epoch);
    MemberGone evicted = Dropped(turn);
    evicted.evicted = true;
    roster.Remove(evicted);
    roster.KeepNewest(1);
  }
  EXPECT_EQ(roster.Find(MemberId{0}), nullptr);
  EXPECT_EQ(roster.Find(MemberId{2999 - kMaxEvicted - 1}), nullptr);
  EXPECT_NE(roster.Find(MemberId{2999 - kMaxEvicted}), nullptr);
  EXPECT_NE(roster.Find(MemberId{2999}), nullptr);
}

TEST(RosterTest, IgnoresNewsOfStrangers) {
  Roster roster;
  roster.End({MemberId{9}, kGroup, Round{1}, true});
  roster.Remove(Dropped(9));
  EXPECT_EQ(roster.Find(MemberId{9}), nullptr);
}

}  // namespace
}  // namespace syncgrads::server
