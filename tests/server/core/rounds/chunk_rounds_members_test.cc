// Which members a round of one chunk waits for when members are dropped, leave, or end their data.

#include <cstdint>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"
#include "tests/server/core/rounds/chunk_rounds_fixture.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;

TEST(ChunkRoundsTest, WhatADroppedMemberContributedStands) {
  Rounds rounds(3);
  rounds.Push(2, 1, 4);
  rounds.Drop(2);
  rounds.Push(0, 1, 1);
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.value(0), 7);
  EXPECT_THAT(rounds.counts(0), ElementsAre(3));
}

TEST(ChunkRoundsTest, WhatADroppedMemberDidNotContributeIsASkip) {
  Rounds rounds(3);
  rounds.Push(0, 1, 1);
  rounds.Push(1, 1, 2);
  rounds.Drop(2);
  ASSERT_EQ(rounds.answers(0), 1u);
  EXPECT_EQ(rounds.value(0), 3);
  EXPECT_THAT(rounds.counts(0), ElementsAre(2));
  rounds.Push(2, 2, 9);
  ExpectError(rounds.sink(2).error(), kFailed, {"\"w2\"", "lease of 30s ended"});
}

TEST(ChunkRoundsTest, WaitsForWhatAMemberThatLeftHasOnTheWay) {
  Rounds rounds(2);
  rounds.Leave(1, 2);
  rounds.Push(0, 1, 1);
  EXPECT_EQ(rounds.answers(0), 0u);
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.value(0), 3);
  rounds.Push(1, 2, 20);
  rounds.Push(0, 2, 10);
  EXPECT_EQ(rounds.value(0), 30);
  rounds.Push(0, 3, 100);
  EXPECT_EQ(rounds.value(0), 100);
  rounds.Push(1, 3, 9);
  ExpectError(rounds.sink(1).error(), kFailed, {"\"w1\"", "left"});
}

TEST(ChunkRoundsTest, AnEndedMemberIsNotWaitedForBeyondItsLastRound) {
  Rounds rounds(2);
  rounds.End(1, 1, /*follows=*/false);
  rounds.Push(0, 1, 1);
  EXPECT_EQ(rounds.answers(0), 0u) << "its last contribution is still on the way";
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.value(0), 3);
  rounds.Push(0, 2, 10);
  EXPECT_EQ(rounds.value(0), 10);
}

TEST(ChunkRoundsTest, AnEndThatIsHeardOfLateClosesTheRoundThatWaited) {
  Rounds rounds(2);
  rounds.Push(0, 1, 1);
  rounds.Push(1, 1, 2);
  rounds.Push(0, 2, 10);
  EXPECT_EQ(rounds.answers(0), 1u);
  rounds.End(1, 1);
  ASSERT_EQ(rounds.answers(0), 2u);
  EXPECT_EQ(rounds.value(0), 10);
}

TEST(ChunkRoundsTest, AFollowerGetsEveryResultAndContributesNothing) {
  Rounds rounds(2);
  rounds.End(1, 0);
  for (uint64_t round = 1; round <= 4; ++round) {
    rounds.Skip(1, round);
    EXPECT_EQ(rounds.answers(1), round - 1);
    rounds.Push(0, round, static_cast<double>(round));
    EXPECT_EQ(rounds.value(1), static_cast<double>(round));
    EXPECT_THAT(rounds.counts(1), ElementsAre(1));
  }
  rounds.Push(1, 5, 3);
  ExpectError(rounds.sink(1).error(), kFailed, {"\"w1\"", "ended its data"});
}

TEST(ChunkRoundsTest, DoesNotRunAheadOfAFollowerByMoreThanOneRound) {
  Rounds rounds(2);
  rounds.End(1, 0);
  rounds.Push(0, 1, 1);
  EXPECT_EQ(rounds.answers(0), 1u) << "the follower is not waited for in the round itself";
  rounds.Push(0, 2, 2);
  EXPECT_EQ(rounds.answers(0), 1u) << "the follower has not asked for round 1";
  ASSERT_TRUE(rounds->Explain().has_value());
  EXPECT_THAT(rounds->Explain()->missing, ElementsAre(MemberId{1}));
  rounds.Skip(1, 1);
  EXPECT_EQ(rounds.answers(0), 2u);
  EXPECT_EQ(rounds.value(1), 1);
  rounds.Skip(1, 2);
  EXPECT_EQ(rounds.value(1), 2);
}

TEST(ChunkRoundsTest, KeepsTwoResultsForAFollower) {
  Rounds rounds(2);
  rounds.End(1, 0);
  rounds.Push(0, 1, 1);
  rounds.Skip(1, 1);
  rounds.Push(0, 2, 2);
  // The member's stream broke before the answers were sent.
  rounds.NewStream(1);
  rounds.Skip(1, 1);
  EXPECT_EQ(rounds.value(1), 1);
  rounds.Skip(1, 2);
  EXPECT_EQ(rounds.value(1), 2);
}

TEST(ChunkRoundsTest, ARefusedPushDoesNotCountAsHavingAskedForResults) {
  Rounds rounds(2);
  rounds.End(1, 0);
  rounds.Skip(1, 100);
  ExpectError(rounds.sink(1).error(), kFailed, {"round 100"});
  rounds.Push(0, 1, 1);
  rounds.Push(0, 2, 2);
  EXPECT_EQ(rounds.answers(0), 1u);
  rounds.Skip(1, 1);
  EXPECT_EQ(rounds.value(1), 1);
}

TEST(ChunkRoundsTest, AFollowerThatIsDroppedHoldsNobodyUp) {
  Rounds rounds(2);
  rounds.End(1, 0);
  rounds.Push(0, 1, 1);
  rounds.Push(0, 2, 2);
  EXPECT_EQ(rounds.answers(0), 1u);
  rounds.Drop(1);
  EXPECT_EQ(rounds.answers(0), 2u);
}

TEST(ChunkRoundsTest, ARoundThatNobodyHasDataForIsOutOfRange) {
  Rounds rounds(2);
  rounds.Push(0, 1, 1);
  rounds.Push(1, 1, 2);
  rounds.End(0, 1);
  rounds.End(1, 1);
  rounds.Skip(0, 2);
  ExpectError(rounds.sink(0).error(), kOutOfRange, {"\"model\"", "round 2"});
  rounds.Skip(1, 2);
  ExpectError(rounds.sink(1).error(), kOutOfRange, {"round 2"});
  EXPECT_EQ(rounds->open_round(), Round{2});
  EXPECT_EQ(rounds->Explain(), std::nullopt);
}

TEST(ChunkRoundsTest, FollowersGoOnToTheRoundsOfANewcomerThatHasData) {
  Rounds rounds(2);
  rounds.Tell([](Roster& roster) {
    Epoch epoch = *roster.newest_epoch();
    ++epoch.number;
    epoch.members.push_back({MemberId{2}, "w2", IncarnationOf(2)});
    epoch.first_rounds = {{GroupId{}, Round{2}}};
    roster.Add(epoch);
  });
  rounds.End(0, 0);
  rounds.End(1, 0);
  rounds.Skip(0, 1);
  rounds.Skip(1, 1);
  EXPECT_THAT(rounds.sink(0).error(), IsOk())
      << "the round before the newcomer's has nobody's data";
  EXPECT_THAT(rounds.counts(0), ElementsAre(0));
  rounds.Skip(0, 2);
  rounds.Skip(1, 2);
  rounds.PushTo(std::make_shared<RecordingSink>(), PushOf(2, 2), 5);
  EXPECT_EQ(rounds.value(0), 5);
  EXPECT_EQ(rounds.value(1), 5);
  // Once member 2 has ended its data as well, there is no further round.
  rounds.End(2, 2);
  rounds.Skip(0, 3);
  ExpectError(rounds.sink(0).error(), kOutOfRange, {"round 3"});
}

TEST(ChunkRoundsTest, AFollowerIsToldWhenTheLastMemberWithDataEndsOrGoes) {
  for (const bool drops : {true, false}) {
    Rounds rounds(2);
    rounds.End(1, 0);
    rounds.Skip(1, 1);
    EXPECT_EQ(rounds.answers(1), 0u);
    if (drops) {
      rounds.Drop(0);
    } else {
      rounds.End(0, 0);
    }
    ExpectError(rounds.sink(1).error(), kOutOfRange, {"round 1"});
  }
}

// The tests below replace the roster and do not pass it to the chunk.

TEST(ChunkRoundsTest, AChunkWithoutSeatsUsesTheNewestRosterAtItsNextPush) {
  Rounds rounds(3);
  rounds.Replace([](Roster& roster) {
    roster.Remove({MemberId{2}, IncarnationOf(2), "lease of 30s ended", false, {}});
  });
  rounds.Push(2, 1, 4);
  ExpectError(rounds.sink(2).error(), kFailed, {"\"w2\"", "lease of 30s ended"});
  rounds.Push(0, 1, 1);
  rounds.Replace([](Roster& roster) { roster.End({MemberId{1}, GroupId{}, Round{1}, true}); });
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.value(0), 3);
  rounds.Push(0, 2, 5);
  EXPECT_EQ(rounds.value(0), 5) << "member 1 has ended its data";
}

TEST(ChunkRoundsTest, ASeatThatTheNewestEpochExcludesIsRefusedBeforeAnotherPushCounts) {
  Rounds rounds(2);
  rounds.Push(1, 1, 2);
  rounds.Replace([](Roster& roster) {
    Epoch epoch = EpochOfSize(1);
    epoch.number = 2;
    epoch.first_rounds = {{GroupId{}, Round{1}}};
    roster.Add(epoch);
  });
  rounds.Push(0, 1, 1);
  EXPECT_EQ(rounds.value(0), 1);
  ExpectError(rounds.sink(1).error(), kFailed, {"\"w1\"", "epoch 2"});
}

TEST(ChunkRoundsTest, HasPushesWhileARosterMayCompleteOrRefuseSomething) {
  Rounds rounds(2);
  EXPECT_FALSE(rounds->HasPushes());
  rounds.Push(0, 2, 1);
  EXPECT_FALSE(rounds->HasPushes()) << "the push was refused";
  rounds.Push(0, 1, 1);
  EXPECT_TRUE(rounds->HasPushes());
  rounds.Push(1, 1, 2);
  EXPECT_FALSE(rounds->HasPushes());
  rounds.Push(1, 1, 2);
  EXPECT_FALSE(rounds->HasPushes()) << "the push was answered from the kept result";
}

TEST(ChunkRoundsTest, KeepsNoEarlierRosterInMemory) {
  Rounds rounds(3);
  const auto end = [](Roster& roster) { roster.End({MemberId{1}, GroupId{}, Round{0}, true}); };
  std::weak_ptr<const Roster> earlier = rounds.roster();
  rounds.Push(0, 1, 1);
  rounds.Replace(end);
  EXPECT_TRUE(earlier.expired());
  earlier = rounds.roster();
  EXPECT_TRUE(rounds->Explain().has_value());
  rounds.Replace(end);
  EXPECT_TRUE(earlier.expired());
}

TEST(ChunkRoundsTest, SumsWhateverIsLeftAfterAnEndThatComesBeforeItsContribution) {
  Rounds rounds(3);
  rounds.End(1, 1);
  rounds.Push(0, 1, 1);
  rounds.Push(2, 1, 4);
  EXPECT_EQ(rounds.answers(0), 0u);
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.value(0), 7);
}

}  // namespace
}  // namespace syncgrads::server
