// ChunkRounds of a group with a quorum. The test decides in place of the coordinator.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/rounds/arrivals.h"
#include "server/core/rounds/chunk_rounds.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;

class QuorumRoundsTest : public ::testing::Test {
 protected:
  void Start(uint32_t members, UpdateRule rule = Reduction::kSum, uint32_t kept = 3) {
    plan_ = OneTensor(DType::kF64, 1, std::move(rule));
    plan_->spec.policy = Quorum{.least = 2, .kept = kept};
    roster_.Add(EpochOfSize(members));
    for (uint32_t i = 0; i < members; ++i) sinks_.push_back(std::make_shared<RecordingSink>());
    relay_.SetSink([this](const Arrival& arrival) { arrived_.push_back(arrival.member); });
    arrivals_.emplace(Arrival{"job", Generation{1}, plan_->id, {}, {}}, relay_);
    arrivals_->SetChunks(1);
    current_.Set(std::make_shared<Roster>(roster_));
    rounds_.emplace(*plan_, ChunkId{0}, Generation{1}, current_, clock_, nullptr, 0,
                    std::make_shared<GradientAlerts>(), &*arrivals_);
  }
  void Push(uint32_t member, uint64_t round, double value) {
    rounds_->Push(PushOf(member, round), PayloadOf(BytesOf<double>({value})), sinks_[member]);
  }
  void Skip(uint32_t member, uint64_t round) {
    rounds_->Push(SkipOf(member, round), PayloadOf(""), sinks_[member]);
  }
  void Fix(uint64_t round, const std::vector<uint32_t>& members) {
    std::vector<MemberId> set;
    for (uint32_t member : members) set.push_back(MemberId{member});
    rounds_->Finish(rounds_->Fix(Round{round}, set));
  }
  template <typename Change>
  void Tell(Change change) {
    change(roster_);
    current_.Set(std::make_shared<Roster>(roster_));
    rounds_->Finish(rounds_->TakeRoster());
  }
  void End(uint32_t member, uint64_t last_round) {
    Tell([&](Roster& roster) {
      roster.End({MemberId{member}, plan_->id, Round{last_round}, true});
    });
  }
  void Drop(uint32_t member) {
    Tell([&](Roster& roster) {
      roster.Remove({MemberId{member}, IncarnationOf(member), "lease of 30s ended", false, {}});
    });
  }
  // Closes one round with the contributions of members 0 and 1 only.
  void StepWithout(uint64_t round) {
    Push(0, round, 1);
    Push(1, round, 2);
    Fix(round, {0, 1});
  }
  Answered last(uint32_t member) const { return sinks_[member]->last(); }
  double value(uint32_t member) const { return ValuesOf<double>(last(member).payload).at(0); }

  FakeClock clock_;
  std::optional<GroupPlan> plan_;
  Roster roster_;
  CurrentRoster current_{nullptr};
  ArrivalRelay relay_;
  std::vector<MemberId> arrived_;
  std::optional<Arrivals> arrivals_;
  std::optional<ChunkRounds> rounds_;
  std::vector<std::shared_ptr<RecordingSink>> sinks_;
};

TEST_F(QuorumRoundsTest, WaitsForTheCoordinatorWhoeverIsThere) {
  Start(3);
  for (uint32_t member : {2, 0, 1}) Push(member, 1, 1 << member);
  EXPECT_THAT(arrived_, ElementsAre(MemberId{2}, MemberId{0}, MemberId{1}));
  EXPECT_EQ(sinks_[0]->count(), 0u);
  Fix(1, {0, 2});
  for (uint32_t member : {0, 1, 2}) {
    EXPECT_EQ(value(member), 5) << "also for whom it is without";
    EXPECT_THAT(last(member).header.contributors, ElementsAre(0, 2));
    EXPECT_THAT(last(member).header.counts, ElementsAre(2));
  }
  EXPECT_EQ(rounds_->late_contributions(), 1u);
}

TEST_F(QuorumRoundsTest, ArrivalsOfMembersThatAreForgottenAreToo) {
  Start(3);
  for (uint32_t member : {0, 1, 2}) Push(member, 1, 1);
  EXPECT_EQ(arrivals_->Newest().size(), 3u);
  Roster roster;
  Epoch epoch;
  epoch.members = {{MemberId{1}, "b", IncarnationOf(1)}};
  roster.Add(epoch);
  arrivals_->ForgetUnless(roster);
  const std::vector<Arrival> newest = arrivals_->Newest();
  ASSERT_EQ(newest.size(), 1u);
  EXPECT_EQ(newest[0].member, MemberId{1});
}

TEST_F(QuorumRoundsTest, WaitsForWhatASetHasLostHere) {
  Start(3);
  Fix(1, {0, 2});
  Push(0, 1, 1);
  Push(1, 1, 2);
  EXPECT_EQ(sinks_[0]->count(), 0u);
  EXPECT_THAT(rounds_->Explain()->missing, ElementsAre(MemberId{2}));
  Push(2, 1, 4);
  EXPECT_EQ(value(0), 5);
}

TEST_F(QuorumRoundsTest, AMemberOfTheSetThatDiesIsNotWaitedFor) {
  Start(3);
  Fix(1, {0, 2});
  Push(0, 1, 1);
  Drop(2);
  EXPECT_EQ(value(0), 1);
}

TEST_F(QuorumRoundsTest, ALateMemberGetsWhatItMissedAndIsToldTheNewestRound) {
  Start(3);
  for (uint64_t round : {1, 2, 3}) StepWithout(round);
  Push(2, 1, 100);
  EXPECT_EQ(value(2), 3);
  EXPECT_EQ(last(2).header.round, Round{1});
  EXPECT_EQ(last(2).header.newest_round, Round{3});
  Skip(2, 2);
  EXPECT_EQ(last(2).header.newest_round, Round{3});
  Skip(2, 3);
  EXPECT_EQ(value(2), 3);
  EXPECT_EQ(last(2).header.newest_round, Round{});
  EXPECT_EQ(rounds_->late_contributions(), 1u) << "a skip is not late";
  Push(2, 4, 100);
  Push(0, 4, 1);
  Fix(4, {0, 2});
  EXPECT_EQ(value(2), 101);
}

TEST_F(QuorumRoundsTest, WhatIsRepeatedIsLateOnceAndWhatCountedNever) {
  Start(3);
  StepWithout(1);
  Push(0, 1, 1);
  EXPECT_EQ(rounds_->late_contributions(), 0u);
  Push(2, 1, 100);
  Push(2, 1, 100);
  EXPECT_EQ(rounds_->late_contributions(), 1u);
}

TEST_F(QuorumRoundsTest, KeepsAsManyResultsAsThePolicySays) {
  Start(3, Reduction::kSum, 3);
  for (uint64_t round : {1, 2, 3, 4}) StepWithout(round);
  Skip(2, 2);
  EXPECT_EQ(value(2), 3);
  Skip(2, 1);
  ExpectError(sinks_[2]->error(), kFailed, {"round 1", "no longer kept", "rejoin"});
}

TEST_F(QuorumRoundsTest, AFollowerIsWaitedForBeforeItsResultIsDropped) {
  Start(3, Reduction::kSum, 3);
  End(2, 0);
  for (uint64_t round : {1, 2, 3}) StepWithout(round);
  EXPECT_EQ(rounds_->open_round(), Round{3}) << "the follower has not asked for the first";
  EXPECT_THAT(rounds_->Explain()->missing, ElementsAre(MemberId{2}));
  Skip(2, 1);
  EXPECT_EQ(rounds_->open_round(), Round{4});
}

TEST_F(QuorumRoundsTest, ParametersAreThoseOfTheNewestRoundWhicheverIsAskedFor) {
  Start(3, Sgd{.learning_rate = 1});
  Push(0, 0, 10);
  Skip(1, 0);
  EXPECT_EQ(rounds_->open_round(), Round{0}) << "the first parameters are everybody's affair";
  Skip(2, 0);
  EXPECT_EQ(value(2), 10);
  for (uint64_t round : {1, 2, 3}) StepWithout(round);  // each step subtracts 1.5
  Push(2, 1, 100);
  EXPECT_EQ(value(2), 5.5);
  EXPECT_EQ(last(2).header.round, Round{1});
  EXPECT_EQ(last(2).header.newest_round, Round{3});
  Skip(2, 3);
  EXPECT_EQ(value(2), 5.5);
  EXPECT_EQ(last(2).header.newest_round, Round{});
}

TEST_F(QuorumRoundsTest, AStepThatOnlySkippersMakeHasNoContributors) {
  Start(2);
  Skip(0, 1);
  Skip(1, 1);
  Fix(1, {0, 1});
  EXPECT_THAT(last(0).header.counts, ElementsAre(0));
  EXPECT_EQ(last(0).payload, "");
  EXPECT_EQ(rounds_->open_round(), Round{2});
}

TEST_F(QuorumRoundsTest, WhenEverybodyHasEndedThereIsNoFurtherRound) {
  Start(2);
  End(0, 1);
  Push(0, 1, 1);
  Push(1, 1, 2);
  Fix(1, {0, 1});
  Skip(0, 2);
  EXPECT_EQ(sinks_[0]->count(), 1u);
  End(1, 1);
  ExpectError(sinks_[0]->error(), kOutOfRange, {"no round 2"});
}

TEST_F(QuorumRoundsTest, ASetForARoundThatHasClosedChangesNothing) {
  Start(2);
  StepWithout(1);
  Fix(1, {0});
  Push(0, 2, 1);
  EXPECT_EQ(sinks_[0]->count(), 1u);
  EXPECT_EQ(rounds_->open_round(), Round{2});
}

}  // namespace
}  // namespace syncgrads::server
