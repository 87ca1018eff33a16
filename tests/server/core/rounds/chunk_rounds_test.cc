// When a round of one chunk closes, its result, and which pushes are refused.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"
#include "tests/server/core/rounds/chunk_rounds_fixture.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

TEST(ChunkRoundsTest, ClosesWhenEverybodyHasPushedAndAnswersEverybodyOnce) {
  Rounds rounds(3);
  rounds.Push(0, 1, 1);
  rounds.Push(2, 1, 4);
  EXPECT_EQ(rounds.answers(0) + rounds.answers(1) + rounds.answers(2), 0u);
  rounds.Push(1, 1, 2);
  for (uint32_t member : {0, 1, 2}) {
    ASSERT_EQ(rounds.answers(member), 1u);
    EXPECT_EQ(rounds.value(member), 7);
    const UpdateHeader header = rounds.sink(member).last().header;
    EXPECT_EQ(header.generation, Generation{1});
    EXPECT_EQ(header.round, Round{1});
    EXPECT_EQ(header.epoch, 1u);
    EXPECT_THAT(header.counts, ElementsAre(3));
  }
  EXPECT_EQ(rounds->open_round(), Round{2});
}

TEST(ChunkRoundsTest, GivesOneBitPatternInEveryOrderOfArrival) {
  for (const std::vector<double>& values :
       {std::vector<double>{0.1, 0.2, 0.3}, std::vector<double>{1e16, 1, -1e16}}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
      std::string first;
      std::vector<uint32_t> order = {0, 1, 2};
      do {
        Rounds rounds(3, reduction);
        for (uint32_t member : order) rounds.Push(member, 1, values[member]);
        for (uint32_t member : order) {
          const std::string bits = rounds.sink(member).last().payload;
          ASSERT_EQ(bits.size(), 8u);
          if (first.empty()) first = bits;
          EXPECT_EQ(bits, first) << "order " << absl::StrJoin(order, ",");
        }
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST(ChunkRoundsTest, EveryPatternOfSkipsGivesTheSumOfThoseTakingPartAndHowMany) {
  for (uint32_t n = 1; n <= 5; ++n) {
    for (uint32_t skips = 0; skips < 1u << n; ++skips) {
      SCOPED_TRACE(absl::StrCat(n, " workers, skips ", absl::Hex(skips)));
      Rounds rounds(n);
      double sum = 0;
      uint32_t taking_part = 0;
      for (uint32_t member = 0; member < n; ++member) {
        if ((skips >> member & 1) != 0) {
          rounds.Skip(member, 1);
        } else {
          rounds.Push(member, 1, 1 << member);
          sum += 1 << member;
          ++taking_part;
        }
      }
      for (uint32_t member = 0; member < n; ++member) {
        ASSERT_EQ(rounds.answers(member), 1u);
        EXPECT_THAT(rounds.sink(member).error(), IsOk());
        EXPECT_THAT(rounds.counts(member), ElementsAre(taking_part));
        if (taking_part > 0) {
          EXPECT_EQ(rounds.value(member), sum);
        } else {
          EXPECT_EQ(rounds.sink(member).last().payload, "");
        }
      }
      EXPECT_EQ(rounds->open_round(), Round{2});
    }
  }
}

TEST(ChunkRoundsTest, WeighsAnAverageAndTakesZeroForOne) {
  Rounds rounds(2, Reduction::kAverage);
  PushHeader header = PushOf(0, 1);
  header.weight = 3;
  rounds.Push(header, BytesOf<double>({1}));
  rounds.Push(1, 1, 5);
  EXPECT_EQ(rounds.value(0), 2);
}

TEST(ChunkRoundsTest, NamesWhoContributedToAReduction) {
  Rounds rounds(3);
  rounds.Push(2, 1, 3);
  rounds.Skip(1, 1);
  rounds.Push(0, 1, 1);
  EXPECT_THAT(rounds.sink(1).last().header.contributors, ElementsAre(0, 2));
}

TEST(ChunkRoundsTest, GathersPayloadsOfManyInRankOrder) {
  Rounds rounds(3, Gather{});
  rounds.Push(2, 1, 3);
  rounds.Skip(1, 1);
  rounds.Push(0, 1, 1);
  EXPECT_EQ(rounds.sink(1).values<double>(), (std::vector<double>{1, 3}));
  EXPECT_THAT(rounds.sink(1).last().header.contributors, ElementsAre(0, 2));
}

TEST(ChunkRoundsTest, AGroupThatClosesWithTheFirstWaitsForNobodyElse) {
  GroupPlan plan = OneTensor(DType::kF64, 1, Reduction::kSum);
  plan.spec.policy = First{};
  Rounds rounds(3, std::move(plan));
  rounds.Skip(2, 1);
  EXPECT_EQ(rounds.sink(2).count(), 0u);
  rounds.Push(0, 1, 5);
  EXPECT_EQ(rounds.sink(2).values<double>(), (std::vector<double>{5}));
  rounds.Skip(1, 1);  // late, but answered
  EXPECT_EQ(rounds.sink(1).values<double>(), (std::vector<double>{5}));
}

TEST(ChunkRoundsTest, CountsARetriedPushOnceAndAnswersItOnItsNewStream) {
  Rounds rounds(2);
  rounds.Push(0, 1, 1);
  rounds.NewStream(0);
  rounds.Push(0, 1, 1);
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.answers(0), 1u);
  EXPECT_EQ(rounds.value(0), 3);
  EXPECT_THAT(rounds.counts(1), ElementsAre(2));
}

// A worker pushes again on a new stream, and the server reads the push from the old stream after
// that.
TEST(ChunkRoundsTest, APushThatIsOvertakenByItsRepetitionDoesNotTakeTheAnswer) {
  Rounds rounds(2, OneTensor(DType::kF64, 1, Reduction::kSum));
  auto heard = std::make_shared<RecordingSink>(), broken = std::make_shared<RecordingSink>();
  rounds.PushTo(heard, PushOf(0, 1), 3);
  rounds.PushTo(broken, PushOf(0, 1), 3);
  rounds.PushTo(heard, PushOf(0, 1), 3);
  rounds.Push(1, 1, 4);
  EXPECT_EQ(heard->values<double>(), (std::vector<double>{7}));
  EXPECT_EQ(heard->count(), 1u);
  EXPECT_EQ(broken->count(), 1u);
}

TEST(ChunkRoundsTest, KeepsWhatWasPushedFirst) {
  Rounds rounds(2);
  rounds.Push(0, 1, 1);
  rounds.Push(0, 1, 100);
  rounds.Skip(0, 1);
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.value(1), 3);
}

TEST(ChunkRoundsTest, AnswersAPushToAClosedRoundWithItsResult) {
  Rounds rounds(2);
  rounds.Push(0, 1, 1);
  rounds.Push(1, 1, 2);
  rounds.NewStream(0);
  rounds.Push(0, 1, 50);
  ASSERT_EQ(rounds.answers(0), 1u);
  EXPECT_EQ(rounds.value(0), 3);
  EXPECT_EQ(rounds->open_round(), Round{2});
  // The next round does not contain the dropped member.
  rounds.Push(0, 2, 10);
  rounds.Push(1, 2, 20);
  EXPECT_EQ(rounds.value(1), 30);
}

TEST(ChunkRoundsTest, LeavesThePayloadOutWhereItIsNotWanted) {
  Rounds rounds(2);
  PushHeader header = PushOf(0, 1);
  header.without_result = true;
  rounds.Push(header, BytesOf<double>({1}));
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.sink(0).last().payload, "");
  EXPECT_THAT(rounds.counts(0), ElementsAre(2));
  EXPECT_EQ(rounds.value(1), 3);
  rounds.Push(header, BytesOf<double>({1}));
  EXPECT_EQ(rounds.sink(0).last().payload, "");
}

TEST(ChunkRoundsTest, RefusesARoundThatIsNotOpenYetAndNamesBoth) {
  Rounds rounds(2);
  rounds.Push(0, 3, 1);
  ExpectError(rounds.sink(0).error(), kFailed,
              {"round 3", "\"model\"", "not open yet", "round 1 is"});
  EXPECT_EQ(rounds->open_round(), Round{1});
}

TEST(ChunkRoundsTest, RefusesARoundThatIsNoLongerKeptAndNamesBoth) {
  Rounds rounds(1);
  for (uint64_t round : {1, 2, 3}) rounds.Push(0, round, 1);
  rounds.Push(0, 2, 1);
  ExpectError(rounds.sink(0).error(), kFailed, {"round 2", "no longer kept", "round 4 is open"});
}

TEST(ChunkRoundsTest, FencesAnotherIncarnationAndStrangers) {
  Rounds rounds(2);
  PushHeader header = PushOf(0, 1);
  header.incarnation = Incarnation{77};
  rounds.Push(header, BytesOf<double>({1}));
  ExpectError(rounds.sink(0).error(), kFailed, {"incarnation 77", "\"w0\"", "1000"});
  header = PushOf(0, 1);
  header.member = MemberId{9};
  rounds->Push(header, PayloadOf(BytesOf<double>({1})), std::make_shared<RecordingSink>());
  EXPECT_EQ(rounds->Explain(), std::nullopt);
}

TEST(ChunkRoundsTest, ExplainsWhomTheOpenRoundWaitsForAndSinceWhen) {
  Rounds rounds(3);
  EXPECT_EQ(rounds->Explain(), std::nullopt);
  rounds.clock().Advance(absl::Seconds(5));
  const absl::Time began = rounds.clock().Now();
  rounds.Push(1, 1, 1);
  rounds.clock().Advance(absl::Seconds(5));
  const std::optional<ChunkWait> wait = rounds->Explain();
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(wait->round, Round{1});
  EXPECT_EQ(wait->since, began);
  EXPECT_THAT(wait->missing, ElementsAre(MemberId{0}, MemberId{2}));
}

// Each member has a window of one chunk and pushes the chunks in the opposite order. Neither may
// wait for the other.
TEST(ChunkRoundsTest, MembersThatPushChunksInOppositeOrdersFinish) {
  constexpr int kChunks = 10;
  std::vector<std::unique_ptr<Rounds>> chunks;
  for (int c = 0; c < kChunks; ++c) chunks.push_back(std::make_unique<Rounds>(2));
  for (uint64_t round = 1; round <= 3; ++round) {
    for (int i = 0; i < kChunks; ++i) {
      chunks[i]->Push(0, round, i);
      chunks[kChunks - 1 - i]->Push(1, round, 1);
    }
    for (int c = 0; c < kChunks; ++c) {
      EXPECT_EQ(chunks[c]->answers(0), round);
      EXPECT_EQ(chunks[c]->value(0), c + 1);
    }
  }
}

// Tests of rounds whose parameters are on the servers.

TEST(ChunkRoundsTest, BeginsWithRoundZeroWhereServersHoldParameters) {
  Rounds rounds(2, Optimizer(Sgd{.learning_rate = 0.5}));
  EXPECT_EQ(rounds->open_round(), Round{0});
  rounds.Skip(0, 0);
  rounds.Push(1, 0, 8);
  EXPECT_EQ(rounds.value(0), 8);
  rounds.Push(0, 1, 2);
  rounds.Push(1, 1, 4);
  EXPECT_EQ(rounds.value(1), 8 - 0.5 * 3);
}

TEST(ChunkRoundsTest, SaysSoWhenNobodyGivesInitialParametersAndTakesThemLater) {
  Rounds rounds(2, Optimizer(Sgd{}));
  rounds.Skip(0, 0);
  rounds.Skip(1, 0);
  ExpectError(rounds.sink(0).error(), kFailed, {"initial parameters", "\"model\"", "broadcast"});
  EXPECT_EQ(rounds->open_round(), Round{0});
  rounds.Push(0, 0, 8);
  rounds.Skip(1, 0);
  EXPECT_EQ(rounds.value(1), 8);
}

TEST(ChunkRoundsTest, AStepThatEverybodySkipsReturnsTheParametersUnchanged) {
  Rounds rounds(2, Optimizer(Adam{}));
  rounds.Push(0, 0, 8);
  rounds.Skip(1, 0);
  rounds.Skip(0, 1);
  rounds.Skip(1, 1);
  EXPECT_EQ(rounds.value(0), 8);
  EXPECT_THAT(rounds.counts(0), ElementsAre(0));
  EXPECT_EQ(rounds->open_round(), Round{2});
}

TEST(ChunkRoundsTest, CountsUpdatesOnlyOfStepsThatSomebodyContributedTo) {
  // The first step of Adam has the size of the learning rate, in whichever round it happens.
  Rounds rounds(1, Optimizer(Adam{.learning_rate = 0.125, .epsilon = 1e-12}));
  rounds.Push(0, 0, 8);
  rounds.Skip(0, 1);
  rounds.Skip(0, 2);
  rounds.Push(0, 3, 1000);
  EXPECT_NEAR(rounds.value(0), 8 - 0.125, 1e-9);
}

}  // namespace
}  // namespace syncgrads::server
