// Which epoch a round of one chunk belongs to, and what happens to the round when the epoch
// changes.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"
#include "tests/server/core/rounds/chunk_rounds_fixture.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

// A chunk with two members in the first epoch. Grow adds a third one in the second epoch.
class GrowingRounds : public Rounds {
 public:
  explicit GrowingRounds(GroupPlan plan = OneTensor(DType::kF64, 1, Reduction::kSum))
      : Rounds(2, std::move(plan)) {}
  void Grow(uint64_t first_round) {
    Epoch epoch = EpochOfSize(3);
    epoch.number = 2;
    epoch.first_rounds = {{GroupId{0}, Round{first_round}}};
    Tell([&](Roster& roster) { roster.Add(epoch); });
  }
};

TEST(ChunkRoundsTest, ANewcomerThatIsAheadIsToldToTryAgain) {
  GrowingRounds rounds;
  rounds.Push(0, 1, 1);
  rounds.Grow(2);
  auto newcomer = std::make_shared<RecordingSink>();
  rounds.PushTo(newcomer, PushOf(2, 2), 5);
  ExpectError(newcomer->last().header.error, absl::StatusCode::kUnavailable,
              {"round 2", "waits for round 1"});
  // A newcomer sends a skip for the round before its first one to get that round's result.
  rounds.PushTo(newcomer, SkipOf(2, 1), 0);
  ExpectError(newcomer->last().header.error, absl::StatusCode::kUnavailable,
              {"round 1", "has not closed yet"});
  rounds.Push(1, 1, 2);
  rounds.PushTo(newcomer, SkipOf(2, 1), 0);
  EXPECT_EQ(newcomer->values<double>(), (std::vector<double>{3}));
  rounds.PushTo(newcomer, PushOf(2, 2), 5);
  rounds.Push(0, 2, 1);
  rounds.Push(1, 2, 1);
  EXPECT_EQ(newcomer->values<double>(), (std::vector<double>{7}));
}

TEST(ChunkRoundsTest, AGroupOfOneEpochRefusesWhatWasMadeInAnother) {
  GroupPlan plan = OneTensor(DType::kF64, 1, Reduction::kSum);
  plan.spec.one_epoch = true;
  GrowingRounds rounds(std::move(plan));
  const auto made_in = [](PushHeader header, uint64_t epoch) {
    header.epoch = epoch;
    return header;
  };
  auto early = std::make_shared<RecordingSink>(), late = std::make_shared<RecordingSink>();
  rounds.PushTo(early, made_in(PushOf(0, 1), 1), 1);
  EXPECT_EQ(early->count(), 0u);
  rounds.Grow(1);
  ExpectError(early->last().header.error, absl::StatusCode::kAborted, {"epoch 1", "epoch 2"});
  EXPECT_EQ(early->last().header.epoch, 1u) << "which attempt it was";
  rounds.PushTo(late, made_in(PushOf(1, 1), 1), 1);
  ExpectError(late->last().header.error, absl::StatusCode::kAborted, {"contribute again"});
  EXPECT_EQ(late->last().header.epoch, 1u);
  rounds.PushTo(early, made_in(PushOf(0, 1), 2), 10);
  rounds.PushTo(late, made_in(PushOf(1, 1), 2), 20);
  auto newcomer = std::make_shared<RecordingSink>();
  rounds.PushTo(newcomer, made_in(SkipOf(2, 1), 1), 0);  // a skip is not tied to an epoch
  EXPECT_EQ(newcomer->values<double>(), (std::vector<double>{30}));
}

TEST(ChunkRoundsTest, TheFirstParametersAreOfNoEpoch) {
  GroupPlan plan = OneTensor(DType::kF64, 1, Sgd{.learning_rate = 1});
  plan.spec.one_epoch = true;
  GrowingRounds rounds(std::move(plan));
  auto root = std::make_shared<RecordingSink>(), other = std::make_shared<RecordingSink>();
  PushHeader initial = PushOf(0, 0);
  initial.epoch = 1;
  rounds.Grow(0);
  rounds.PushTo(root, initial, 5);
  PushHeader skip = SkipOf(1, 0);
  skip.epoch = 2;
  rounds.PushTo(other, skip, 0);
  rounds.PushTo(std::make_shared<RecordingSink>(), SkipOf(2, 0), 0);
  EXPECT_EQ(other->values<double>(), (std::vector<double>{5}));
  EXPECT_EQ(root->values<double>(), (std::vector<double>{5}));
}

// Sets the learning rate factor of an epoch that begins with round 2, and makes two rounds, with
// gradients of 1. Returns the parameter, which starts at 10.
double TrainAtFactor(double factor, bool members_scale_rate) {
  GroupPlan plan = OneTensor(DType::kF64, 1, Sgd{.learning_rate = 1});
  plan.spec.members_scale_rate = members_scale_rate;
  Rounds rounds(2, std::move(plan));
  rounds.Push(0, 0, 10);
  rounds.Skip(1, 0);
  Epoch epoch = EpochOfSize(2);
  epoch.number = 2;
  epoch.first_rounds = {{GroupId{0}, Round{2}}};
  epoch.learning_rate.factor = factor;
  rounds.Tell([&](Roster& roster) { roster.Add(epoch); });
  for (uint64_t round : {1, 2}) {
    for (uint32_t member : {0, 1}) rounds.Push(member, round, 1);
  }
  EXPECT_EQ(rounds.sink(0).values<double>(), rounds.sink(1).values<double>());
  return rounds.sink(0).values<double>().at(0);
}

TEST(ChunkRoundsTest, AnUpdateHasTheLearningRateOfItsEpoch) {
  EXPECT_EQ(TrainAtFactor(0.25, /*members_scale_rate=*/false), 10 - 1 - 0.25);
}

TEST(ChunkRoundsTest, AnOptimizerKeepsItsLearningRateIfTheMembersScaleTheirs) {
  EXPECT_EQ(TrainAtFactor(0.25, /*members_scale_rate=*/true), 10 - 1 - 1);
}

TEST(ChunkRoundsTest, AGroupThatClosesWithTheFirstGivesUpARoundForThatOfANewEpoch) {
  GroupPlan plan = OneTensor(DType::kF64, 1, Reduction::kSum);
  plan.spec.policy = First{};
  GrowingRounds rounds(std::move(plan));
  rounds.Skip(1, 1);
  rounds.Push(0, 7, 5);  // no epoch begins with this round
  ExpectError(rounds.sink(0).last().header.error, kFailed, {"round 7", "not open"});
  rounds.Grow(3);
  rounds.Push(0, 3, 5);
  ExpectError(rounds.sink(1).last().header.error, absl::StatusCode::kAborted,
              {"round 1", "abandoned", "round 3"});
  rounds.Skip(1, 3);
  EXPECT_EQ(rounds.sink(1).values<double>(), (std::vector<double>{5}));
}

// Tests of Hold: a round without contributions is frozen until the next epoch is known.

TEST(ChunkRoundsTest, HoldsRoundsThatNobodyHasContributedTo) {
  Rounds rounds(2);
  EXPECT_EQ(rounds->Hold(), Round{1});
  rounds.Push(0, 1, 1);
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.answers(0), 0u);
  rounds->Finish(rounds->EndHold());
  EXPECT_EQ(rounds.value(0), 3);
}

TEST(ChunkRoundsTest, LetsARoundThatHasBegunCloseInAHold) {
  Rounds rounds(2);
  rounds.Push(0, 1, 1);
  EXPECT_EQ(rounds->Hold(), Round{2});
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.value(0), 3);
  rounds.Push(0, 2, 10);
  rounds.Push(1, 2, 20);
  EXPECT_EQ(rounds.answers(0), 1u);
  rounds->Finish(rounds->EndHold());
  EXPECT_EQ(rounds.value(0), 30);
}

TEST(ChunkRoundsTest, ClosesAHeldRoundByTheEpochThatItTurnsOutToBelongTo) {
  // The member with the lowest rank is dropped, so the rank of every other member changes.
  Rounds rounds(3, Gather{});
  rounds.Drop(0);
  EXPECT_EQ(rounds->Hold(), Round{1});
  rounds.Push(2, 1, 3);
  rounds.Push(1, 1, 2);
  rounds.NewEpoch({0}, 1);
  ASSERT_EQ(rounds.answers(1), 1u);
  EXPECT_EQ(rounds.sink(1).values<double>(), (std::vector<double>{2, 3}));
  EXPECT_THAT(rounds.sink(1).last().header.contributors, ElementsAre(0, 1));
  EXPECT_EQ(rounds.sink(1).last().header.epoch, 2u);
}

TEST(ChunkRoundsTest, WaitsForTheRestOfTheNewEpochInARoundThatWasHeld) {
  Rounds rounds(3);
  rounds.Drop(0);
  rounds->Hold();
  rounds.Push(2, 1, 3);
  rounds.NewEpoch({0}, 1);
  EXPECT_EQ(rounds.answers(2), 0u);
  EXPECT_THAT(rounds->Explain()->missing, ElementsAre(MemberId{1}));
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.value(2), 5);
  EXPECT_THAT(rounds.counts(2), ElementsAre(2));
}

TEST(ChunkRoundsTest, AContributionOfAMemberThatIsNotInTheRoundsEpochIsNotCounted) {
  Rounds rounds(3);
  rounds.Drop(0);
  rounds->Hold();
  rounds.Push(1, 1, 100);
  rounds.Push(2, 1, 3);
  // Member 1 is dropped before the new epoch begins.
  rounds.Drop(1);
  rounds.NewEpoch({0, 1}, 1);
  ASSERT_EQ(rounds.answers(2), 1u);
  EXPECT_EQ(rounds.value(2), 3);
  EXPECT_THAT(rounds.counts(2), ElementsAre(1));
  ASSERT_EQ(rounds.answers(1), 1u);
  ExpectError(rounds.sink(1).error(), kFailed, {"\"w1\"", "epoch 2"});
}

TEST(ChunkRoundsTest, AMemberOfAnEarlierEpochOnlyIsRefusedByName) {
  Rounds rounds(2);
  rounds.NewEpoch({1}, 1);
  rounds.Push(1, 1, 1);
  ExpectError(rounds.sink(1).error(), kFailed, {"member 1", "\"w1\"", "epoch 2", "round 1"});
}

}  // namespace
}  // namespace syncgrads::server
