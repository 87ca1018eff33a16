#include "server/core/rounds/chunk_versions.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/state_file.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;

// A parameter that starts at 100. Each gradient, times the learning rate, is subtracted from it.
class ChunkVersionsTest : public ::testing::Test {
 protected:
  ~ChunkVersionsTest() override { StateFile::Remove(path_); }

  void Make(uint32_t members, Staleness staleness, double rate = 1) {
    plan_ = OneTensor(DType::kF64, 1, Sgd{.learning_rate = rate});
    plan_->spec.policy = staleness;
    roster_.Add(EpochOfSize(members));
    sinks_.clear();
    for (uint32_t i = 0; i < members; ++i) sinks_.push_back(std::make_shared<RecordingSink>());
    Open();
  }
  void Open() {
    current_.Set(std::make_shared<Roster>(roster_));
    versions_.emplace(*plan_, ChunkId{0}, Generation{1}, current_, clock_, source_, 0, alerts_);
  }
  void Start(uint32_t members, Staleness staleness, double rate = 1) {
    Make(members, staleness, rate);
    Push(0, 0, 100);
    for (uint32_t member = 1; member < members; ++member) Skip(member, 0);
  }
  void Push(uint32_t member, uint64_t clock, double value) {
    versions_->Push(PushOf(member, clock), PayloadOf(BytesOf<double>({value})), sinks_[member]);
  }
  void Skip(uint32_t member, uint64_t clock) {
    versions_->Push(SkipOf(member, clock), PayloadOf(""), sinks_[member]);
  }
  template <typename Change>
  void Tell(Change change) {
    change(roster_);
    current_.Set(std::make_shared<Roster>(roster_));
    versions_->Finish(versions_->TakeRoster());
  }
  void End(uint32_t member, uint64_t last) {
    Tell([&](Roster& roster) { roster.End({MemberId{member}, plan_->id, Round{last}, true}); });
  }
  void Drop(uint32_t member) {
    Tell([&](Roster& roster) {
      roster.Remove({MemberId{member}, IncarnationOf(member), "lease of 30s ended", false, {}});
    });
  }
  // Stores the versions in a state file from now on.
  void CreateState() {
    layout_.generation = Generation{1};
    layout_.contributors = 16;
    layout_.chunks = {{ChunkId{0}, 8, 1}};
    source_ = *StateFile::Create(path_, layout_, 1 << 20);
  }
  // Restarts from the state file, as after a kill.
  void StartAgain() {
    versions_.reset();
    source_ = *StateFile::Open(path_, layout_);
    Open();
  }
  size_t answers(uint32_t member) const { return sinks_[member]->count(); }
  double value(uint32_t member) const {
    EXPECT_THAT(sinks_[member]->error(), IsOk());
    return ValuesOf<double>(sinks_[member]->last().payload).at(0);
  }

  const std::string path_ = ::testing::TempDir() + "/chunk_versions_state";
  StateLayout layout_;
  FakeClock clock_;
  std::optional<GroupPlan> plan_;
  Roster roster_;
  CurrentRoster current_{nullptr};
  std::shared_ptr<GradientAlerts> alerts_ = std::make_shared<GradientAlerts>();
  std::shared_ptr<SlotSource> source_;
  std::optional<ChunkVersions> versions_;
  std::vector<std::shared_ptr<RecordingSink>> sinks_;
};

TEST_F(ChunkVersionsTest, TheFirstParametersAreWaitedFor) {
  Make(3, {});
  Skip(2, 0);
  EXPECT_EQ(answers(2), 0u);
  Push(1, 1, 5);
  ExpectError(sinks_[1]->error(), kFailed, {"push 1", "no parameters yet"});
  Push(0, 0, 100);
  EXPECT_EQ(value(0), 100);
  EXPECT_EQ(value(2), 100);
  Skip(1, 0);
  EXPECT_EQ(value(1), 100);
}

TEST_F(ChunkVersionsTest, TheNewestLearningRateAppliesAtOnce) {
  Start(2, {});
  Push(0, 1, 8);
  EXPECT_EQ(value(0), 92);
  Tell([&](Roster& roster) {
    Epoch epoch = *roster.newest_epoch();
    ++epoch.number;
    epoch.first_rounds = {{plan_->id, Round{9}}};
    epoch.learning_rate.factor = 0.25;
    roster.Add(epoch);
  });
  Push(1, 1, 8);
  EXPECT_EQ(value(1), 90);
}

TEST_F(ChunkVersionsTest, WithoutABoundEachGradientIsAppliedAndAnsweredAtOnce) {
  Start(3, {});
  Push(0, 1, 1);
  EXPECT_EQ(value(0), 99);
  Push(0, 2, 2);
  EXPECT_EQ(value(0), 97);
  Push(2, 1, 10);
  EXPECT_EQ(value(2), 87);
  EXPECT_THAT(sinks_[2]->last().header.contributors, ElementsAre(2));
  EXPECT_EQ(sinks_[2]->last().header.round, Round{1});
}

TEST_F(ChunkVersionsTest, APushThatIsRepeatedIsAppliedOnce) {
  Start(2, {});
  Push(0, 1, 1);
  Push(0, 1, 1);
  EXPECT_EQ(value(0), 99);
  EXPECT_EQ(answers(0), 3u);
}

TEST_F(ChunkVersionsTest, AMemberHasAtMostOneContributionThatIsNotApplied) {
  Start(2, {});
  const auto seat = [&](uint64_t clock, double value, std::shared_ptr<AnswerSink> sink) {
    return versions_->Seat(PushOf(0, clock), PayloadOf(BytesOf<double>({value})), std::move(sink));
  };
  const CloseWork work = seat(1, 1, sinks_[0]);
  const auto early = std::make_shared<RecordingSink>();
  EXPECT_EQ(seat(2, 2, early), CloseWork::kNone);
  ExpectError(early->error(), absl::StatusCode::kUnavailable, {"round 2", "round 1 has not"});
  versions_->Finish(work);
  EXPECT_EQ(value(0), 99);
  Push(0, 2, 2);
  EXPECT_EQ(value(0), 97);
}

TEST_F(ChunkVersionsTest, APullWaitsUntilTheSlowestIsWithinTheBound) {
  Start(3, {.bound = 2});
  Push(0, 1, 1);
  Push(0, 2, 1);
  EXPECT_EQ(answers(0), 3u);
  Push(0, 3, 1);
  EXPECT_EQ(answers(0), 3u);
  EXPECT_THAT(versions_->Explain()->missing, ElementsAre(MemberId{1}, MemberId{2}));
  Push(1, 1, 10);
  EXPECT_EQ(value(1), 87) << "what is ahead has been applied";
  EXPECT_EQ(answers(0), 3u);
  EXPECT_EQ(versions_->open_round(), Round{1});
  Skip(2, 1);
  EXPECT_EQ(answers(0), 4u);
  EXPECT_EQ(value(0), 87);
  EXPECT_EQ(versions_->open_round(), Round{2});
  EXPECT_EQ(versions_->Explain(), std::nullopt);
}

TEST_F(ChunkVersionsTest, ABoundOfNothingIsAStepTogether) {
  Start(2, {.bound = 0});
  Push(0, 1, 1);
  EXPECT_EQ(answers(0), 1u);
  Push(1, 1, 2);
  EXPECT_EQ(value(0), 97);
  EXPECT_EQ(value(1), 97);
}

TEST_F(ChunkVersionsTest, WhoHasEndedOrGoneIsNotWaitedFor) {
  Start(3, {.bound = 0});
  Push(0, 1, 1);
  End(1, 0);
  EXPECT_EQ(answers(0), 1u);
  Drop(2);
  EXPECT_EQ(value(0), 99);
  Push(1, 1, 5);
  ExpectError(sinks_[1]->error(), kFailed, {"\"w1\"", "ended its data"});
  Push(2, 1, 5);
  ExpectError(sinks_[2]->error(), kFailed, {"lease of 30s ended"});
}

TEST_F(ChunkVersionsTest, AnOldPushThatComesLateDoesNotTakeThePlaceOfTheOneThatWaits) {
  Start(2, {.bound = 0});
  Push(0, 1, 1);
  Push(1, 1, 2);
  Push(0, 2, 4);
  EXPECT_EQ(answers(0), 2u);
  // A duplicate from a stream that the worker has abandoned.
  Push(0, 1, 1);
  EXPECT_EQ(answers(0), 3u);
  EXPECT_EQ(sinks_[0]->last().header.round, Round{1});
  Push(1, 2, 8);
  EXPECT_EQ(answers(0), 4u);
  EXPECT_EQ(sinks_[0]->last().header.round, Round{2});
  EXPECT_EQ(value(0), 85);
}

TEST_F(ChunkVersionsTest, APushThatIsOvertakenByItsRepetitionDoesNotTakeTheAnswer) {
  Start(2, {.bound = 0});
  const size_t before = answers(0);
  Push(0, 1, 1);
  auto broken = std::make_shared<RecordingSink>();
  versions_->Push(PushOf(0, 1), PayloadOf(BytesOf<double>({1})), broken);
  Push(1, 1, 2);
  EXPECT_EQ(answers(0), before + 1);
  EXPECT_EQ(broken->count(), 1u);
  EXPECT_EQ(value(0), 97);
}

TEST_F(ChunkVersionsTest, FirstParametersThatNobodyIsLeftToGiveAreNotWaitedFor) {
  Make(3, {});
  Skip(1, 0);
  Skip(2, 0);
  EXPECT_EQ(answers(1), 0u);
  Drop(0);
  for (uint32_t member : {1, 2}) {
    ExpectError(sinks_[member]->error(), kFailed, {"no member pushed the initial parameters"});
  }
}

TEST_F(ChunkVersionsTest, AFollowerGetsTheLastVersionWhenAllHaveEnded) {
  Start(2, {});
  End(1, 0);
  Skip(1, 1);
  Push(0, 1, 1);
  EXPECT_EQ(answers(1), 1u);
  EXPECT_EQ(versions_->Explain(), std::nullopt) << "it waits for the end";
  End(0, 2);
  EXPECT_EQ(answers(1), 1u) << "a last contribution is on its way";
  Push(0, 2, 1);
  EXPECT_EQ(value(1), 98);
  Skip(1, 1);
  EXPECT_EQ(value(1), 98) << "the answer may have been lost";
  Skip(1, 2);
  ExpectError(sinks_[1]->error(), kOutOfRange, {"no step 2"});
}

TEST_F(ChunkVersionsTest, TheRateFallsWithWhatOthersHaveApplied) {
  Start(3, {.bound = std::nullopt, .scales_rate = true});
  Push(0, 1, 12);  // staleness 0: full rate
  EXPECT_EQ(value(0), 88);
  Push(1, 1, 12);  // staleness 1: full rate
  EXPECT_EQ(value(1), 76);
  Push(2, 1, 12);  // staleness 2: half the rate
  EXPECT_EQ(value(2), 70);
  Push(1, 2, 12);  // staleness 1 since its last answer: full rate
  EXPECT_EQ(value(1), 58);
}

TEST_F(ChunkVersionsTest, ANaNIsRefusedAndNobodyWaitsForItsSender) {
  Start(2, {.bound = 0});
  Push(0, 1, 1);
  Push(1, 1, std::numeric_limits<double>::quiet_NaN());
  ExpectError(sinks_[1]->error(), absl::StatusCode::kInvalidArgument,
              {"worker \"w1\"", "nan", "step 1"});
  EXPECT_EQ(value(0), 99);
  EXPECT_THAT(alerts_->Take().lines, ElementsAre(HasSubstr("refused")));
  Push(1, 2, 5);
  Push(0, 2, 1);
  EXPECT_EQ(value(1), 93);
}

TEST_F(ChunkVersionsTest, ANaNIsLeftOutAndItsSenderIsTold) {
  Make(2, {});
  plan_->spec.non_finite = OnBad::kSkip;
  Push(0, 0, 100);
  Push(1, 1, std::numeric_limits<double>::infinity());
  EXPECT_EQ(value(1), 100);
  EXPECT_THAT(sinks_[1]->last().header.counts, ElementsAre(0));
  EXPECT_THAT(sinks_[1]->last().header.left_out, ElementsAre(0));
  Push(1, 2, 5);
  EXPECT_EQ(value(1), 95);
  EXPECT_THAT(sinks_[1]->last().header.left_out, IsEmpty());
}

TEST_F(ChunkVersionsTest, ARetryIsToldWhatWasLeftOutToo) {
  Make(2, {.bound = 1});
  plan_->spec.non_finite = OnBad::kSkip;
  Push(0, 0, 100);
  Skip(1, 0);
  Push(1, 1, 5);
  Push(1, 2, std::numeric_limits<double>::infinity());
  ASSERT_EQ(answers(1), 2u) << "it waits for member 0";
  Push(1, 2, std::numeric_limits<double>::infinity());
  Push(0, 1, 1);
  EXPECT_EQ(value(1), 94);
  EXPECT_THAT(sinks_[1]->last().header.counts, ElementsAre(0));
  EXPECT_THAT(sinks_[1]->last().header.left_out, ElementsAre(0));
}

TEST_F(ChunkVersionsTest, ClocksOutliveTheServerAndNothingIsAppliedTwice) {
  CreateState();
  Start(2, {});
  for (uint64_t clock = 1; clock <= 20; ++clock) {
    Push(0, clock, 1);
    if (clock % 2 == 0) Push(1, clock / 2, 1);
    StartAgain();
    Push(0, clock, 1);
    if (clock % 2 == 0) Push(1, clock / 2, 1);
  }
  Skip(0, 21);
  EXPECT_EQ(value(0), 70);
}

// A skip creates no version and is therefore not stored.
TEST_F(ChunkVersionsTest, OneThatHasLeftIsNotWaitedForEvenIfItsSkipIsForgotten) {
  CreateState();
  Start(2, {.bound = 0});
  End(1, 1);
  Skip(1, 1);
  StartAgain();
  Tell([&](Roster& roster) {
    roster.Remove({MemberId{1}, IncarnationOf(1), "it left", true, {{plan_->id, Round{1}}}});
  });
  Push(0, 1, 1);
  EXPECT_EQ(value(0), 99);
}

TEST_F(ChunkVersionsTest, UsesTheNewestRosterAlsoIfItWasNotPassedToIt) {
  Start(3, {.bound = 0});
  EXPECT_FALSE(versions_->HasPushes());
  roster_.Remove({MemberId{2}, IncarnationOf(2), "lease of 30s ended", false, {}});
  current_.Set(std::make_shared<Roster>(roster_));
  Push(0, 1, 1);
  EXPECT_TRUE(versions_->HasPushes());
  ASSERT_TRUE(versions_->Explain().has_value());
  EXPECT_THAT(versions_->Explain()->missing, ElementsAre(MemberId{1}));
  Push(1, 1, 1);
  EXPECT_EQ(value(0), 98) << "it does not wait for member 2";
  EXPECT_FALSE(versions_->HasPushes());
  Push(2, 1, 1);
  EXPECT_EQ(sinks_[2]->error().code(), kFailed);
}

// Members that the roster has forgotten do not wait, and a reader may see that first.
TEST_F(ChunkVersionsTest, AWaitOfAMemberThatTheRosterHasForgottenIsNotReported) {
  Start(2, {.bound = 0});
  Push(1, 1, 1);
  roster_.Remove({MemberId{1}, IncarnationOf(1), "lease of 30s ended", false, {}});
  Epoch epoch = EpochOfSize(1);
  epoch.number = 2;
  roster_.Add(epoch);
  roster_.Forget({});
  ASSERT_EQ(roster_.Find(MemberId{1}), nullptr);
  current_.Set(std::make_shared<Roster>(roster_));
  EXPECT_EQ(versions_->Explain(), std::nullopt);
  EXPECT_EQ(versions_->ExplainBriefly(), std::nullopt);
  EXPECT_EQ(versions_->open_round(), Round{1});
  Push(0, 1, 1);
  EXPECT_EQ(value(0), 98);
}

// A record has room for 16 clocks, and more members than that come and go.
TEST_F(ChunkVersionsTest, AnyNumberOfMembersMayComeAndGo) {
  CreateState();
  Start(2, {.bound = 0});
  Push(0, 1, 1);
  Push(1, 1, 1);
  for (uint32_t newcomer = 2; newcomer < 40; ++newcomer) {
    sinks_.push_back(std::make_shared<RecordingSink>());
    Drop(newcomer - 1);
    Tell([&](Roster& roster) {
      Epoch epoch = EpochOfSize(newcomer + 1);
      epoch.number = newcomer;
      epoch.members = {epoch.members.front(), epoch.members.back()};
      roster.Add(epoch);
      if (newcomer % 2 == 0) roster.Forget({});
    });
    if (newcomer % 7 == 0) StartAgain();
    Push(newcomer, newcomer, 1);
    EXPECT_EQ(answers(newcomer), 0u) << "it waits for member 0";
    Push(0, newcomer, 1);
    ASSERT_EQ(value(newcomer), 98 - 2.0 * (newcomer - 1));
    ASSERT_EQ(value(0), value(newcomer));
  }
  const size_t before = answers(0);
  const double last = value(0);
  StartAgain();
  Push(0, 39, 1);  // a duplicate of a push that was applied before the restart
  EXPECT_EQ(answers(0), before + 1);
  EXPECT_EQ(value(0), last);
}

TEST_F(ChunkVersionsTest, MoreMembersAtOnceThanARecordHasRoomFor) {
  CreateState();
  Start(20, {});
  for (uint32_t member = 0; member < 20; ++member) Push(member, 1, 1);
  EXPECT_EQ(value(19), 80);
  StartAgain();
  for (uint32_t member = 0; member < 20; ++member) Push(member, 1, 1);
  EXPECT_EQ(value(19), 80) << "each clock is known again";
}

TEST_F(ChunkVersionsTest, WhatAMemberPushedBeforeItWasDroppedDoesNotBringItsClockBack) {
  Start(2, {});
  ASSERT_EQ(versions_->Seat(PushOf(1, 1), PayloadOf(BytesOf<double>({5})), sinks_[1]),
            CloseWork::kLittle);
  Drop(1);  // applies the pending contribution
  Skip(0, 1);
  EXPECT_EQ(value(0), 95);
  EXPECT_EQ(versions_->open_round(), Round{2});
}

}  // namespace
}  // namespace syncgrads::server
