#include "server/core/chunk_rounds.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/optim/update.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;

// One chunk, its members, and a sink for each.
class Rounds {
 public:
  Rounds(uint32_t members, GroupPlan plan) : plan_(std::move(plan)) {
    roster_.Add(EpochOfSize(members));
    rounds_.emplace(plan_, ChunkId{0}, Generation{1}, std::make_shared<Roster>(roster_), clock_);
    for (uint32_t i = 0; i < members; ++i) sinks_.push_back(std::make_shared<RecordingSink>());
  }
  explicit Rounds(uint32_t members, UpdateRule rule = Reduction::kSum)
      : Rounds(members, OneTensor(DType::kF64, 1, std::move(rule))) {}

  void Push(const PushHeader& header, const std::string& bytes) {
    rounds_->Push(header, PayloadOf(bytes), sinks_[ToNumber(header.member)]);
  }
  void Push(uint32_t member, uint64_t round, double value) {
    Push(PushOf(member, round), BytesOf<double>({value}));
  }
  void Skip(uint32_t member, uint64_t round) { Push(SkipOf(member, round), ""); }
  void PushTo(std::shared_ptr<RecordingSink> sink, const PushHeader& header, double value) {
    rounds_->Push(header, PayloadOf(header.skip ? "" : BytesOf<double>({value})), std::move(sink));
  }

  // Changes the roster as a server would.
  template <typename Change>
  void Tell(Change change) {
    change(roster_);
    rounds_->SetRoster(std::make_shared<Roster>(roster_));
  }
  void End(uint32_t member, uint64_t last_round, bool follows = true) {
    Tell([&](Roster& r) { r.End({MemberId{member}, plan_.id, Round{last_round}, follows}); });
  }
  void Drop(uint32_t member) {
    Tell([&](Roster& roster) {
      roster.Remove({MemberId{member}, IncarnationOf(member), "lease of 30s ended", false, {}});
    });
  }
  void Leave(uint32_t member, uint64_t last_round) {
    Tell([&](Roster& roster) {
      roster.Remove(
          {MemberId{member}, IncarnationOf(member), "left", true, {{plan_.id, Round{last_round}}}});
    });
  }
  // The epoch without these members, from `first` on.
  void NewEpoch(std::vector<uint32_t> gone, uint64_t first) {
    Epoch epoch = *roster_.newest_epoch();
    ++epoch.number;
    std::erase_if(epoch.members, [&gone](const Member& member) {
      return std::count(gone.begin(), gone.end(), ToNumber(member.id)) > 0;
    });
    epoch.first_rounds = {{plan_.id, Round{first}}};
    Tell([&](Roster& roster) { roster.Add(epoch); });
    rounds_->Release();
  }

  RecordingSink& sink(uint32_t member) { return *sinks_[member]; }
  void NewStream(uint32_t member) { sinks_[member] = std::make_shared<RecordingSink>(); }
  size_t answers(uint32_t member) const { return sinks_[member]->count(); }
  double value(uint32_t member) const {
    const std::vector<double> values = sinks_[member]->values<double>();
    EXPECT_EQ(values.size(), 1u) << sinks_[member]->error();
    return values.empty() ? -1 : values[0];
  }
  std::vector<uint32_t> counts(uint32_t member) const {
    return sinks_[member]->last().header.counts;
  }
  ChunkRounds& operator*() { return *rounds_; }
  ChunkRounds* operator->() { return &*rounds_; }
  FakeClock& clock() { return clock_; }

 private:
  FakeClock clock_;
  GroupPlan plan_;
  Roster roster_;
  std::optional<ChunkRounds> rounds_;
  std::vector<std::shared_ptr<RecordingSink>> sinks_;
};

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
  // The next round is free of it.
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
  // Its stream broke before the answers came.
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
  // Until that one has none either.
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

TEST(ChunkRoundsTest, SumsWhateverIsLeftAfterAnEndThatComesBeforeItsContribution) {
  Rounds rounds(3);
  rounds.End(1, 1);
  rounds.Push(0, 1, 1);
  rounds.Push(2, 1, 4);
  EXPECT_EQ(rounds.answers(0), 0u);
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.value(0), 7);
}

// Parameters on the servers.

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
  ExpectError(rounds.sink(0).error(), kFailed, {"initial values", "\"model\"", "broadcast"});
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
  // Adam's first step is of the size of the learning rate, whenever it comes.
  Rounds rounds(1, Optimizer(Adam{.learning_rate = 0.125, .epsilon = 1e-12}));
  rounds.Push(0, 0, 8);
  rounds.Skip(0, 1);
  rounds.Skip(0, 2);
  rounds.Push(0, 3, 1000);
  EXPECT_NEAR(rounds.value(0), 8 - 0.125, 1e-9);
}

TEST(ChunkRoundsTest, NamesWhoContributedToAReduction) {
  Rounds rounds(3);
  rounds.Push(2, 1, 3);
  rounds.Skip(1, 1);
  rounds.Push(0, 1, 1);
  EXPECT_THAT(rounds.sink(1).last().header.contributors, ElementsAre(0, 2));
}

// Three members, of whom the third is of the second epoch only, from round 2 on.
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
  // The round before its first: what it asks for is the result.
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
  ExpectError(late->last().header.error, absl::StatusCode::kAborted, {"make it again"});
  EXPECT_EQ(late->last().header.epoch, 1u);
  rounds.PushTo(early, made_in(PushOf(0, 1), 2), 10);
  rounds.PushTo(late, made_in(PushOf(1, 1), 2), 20);
  auto newcomer = std::make_shared<RecordingSink>();
  rounds.PushTo(newcomer, made_in(SkipOf(2, 1), 1), 0);  // a skip is nobody's
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

// A worker pushes again on a new stream, and what it had sent on the old one is read then.
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

TEST(ChunkRoundsTest, AGroupThatClosesWithTheFirstWaitsForNobodyElse) {
  GroupPlan plan = OneTensor(DType::kF64, 1, Reduction::kSum);
  plan.spec.policy = First{};
  Rounds rounds(3, std::move(plan));
  rounds.Skip(2, 1);
  EXPECT_EQ(rounds.sink(2).count(), 0u);
  rounds.Push(0, 1, 5);
  EXPECT_EQ(rounds.sink(2).values<double>(), (std::vector<double>{5}));
  rounds.Skip(1, 1);  // late, and answered all the same
  EXPECT_EQ(rounds.sink(1).values<double>(), (std::vector<double>{5}));
}

TEST(ChunkRoundsTest, AGroupThatClosesWithTheFirstGivesUpARoundForThatOfANewEpoch) {
  GroupPlan plan = OneTensor(DType::kF64, 1, Reduction::kSum);
  plan.spec.policy = First{};
  GrowingRounds rounds(std::move(plan));
  rounds.Skip(1, 1);
  rounds.Push(0, 7, 5);  // nobody's first round
  ExpectError(rounds.sink(0).last().header.error, kFailed, {"round 7", "not open"});
  rounds.Grow(3);
  rounds.Push(0, 3, 5);
  ExpectError(rounds.sink(1).last().header.error, absl::StatusCode::kAborted,
              {"round 1", "given up for round 3"});
  rounds.Skip(1, 3);
  EXPECT_EQ(rounds.sink(1).values<double>(), (std::vector<double>{5}));
}

TEST(ChunkRoundsTest, GathersPayloadsOfManyInRankOrder) {
  Rounds rounds(3, Gather{});
  rounds.Push(2, 1, 3);
  rounds.Skip(1, 1);
  rounds.Push(0, 1, 1);
  EXPECT_EQ(rounds.sink(1).values<double>(), (std::vector<double>{1, 3}));
  EXPECT_THAT(rounds.sink(1).last().header.contributors, ElementsAre(0, 2));
}

// Changes of the epoch.

TEST(ChunkRoundsTest, HoldsRoundsThatNobodyHasContributedTo) {
  Rounds rounds(2);
  EXPECT_EQ(rounds->Hold(), Round{1});
  rounds.Push(0, 1, 1);
  rounds.Push(1, 1, 2);
  EXPECT_EQ(rounds.answers(0), 0u);
  rounds->Release();
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
  rounds->Release();
  EXPECT_EQ(rounds.value(0), 30);
}

TEST(ChunkRoundsTest, ClosesAHeldRoundByTheEpochThatItTurnsOutToBelongTo) {
  // The lowest rank goes, so every rank after it moves.
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
  // It goes before the new epoch comes.
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

// With a window of one chunk each, in opposite orders: no round waits for a push
// that waits for it.
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

}  // namespace
}  // namespace syncgrads::server
