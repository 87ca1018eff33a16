// Elastic jobs: when and how members enter and leave.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/coordinator/group_registry.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

class ElasticCoordinatorTest : public CoordinatorTest {
 protected:
  explicit ElasticCoordinatorTest(uint32_t servers = 1) : CoordinatorTest(servers) {}

  static Hello ElasticHello(const std::string& name, uint32_t world_size, uint32_t max_workers,
                            uint32_t min_workers = 0) {
    Hello hello = NewHello(name, world_size);
    hello.max_workers = max_workers;
    hello.min_workers = min_workers;
    return hello;
  }
  Joined JoinElastic(const std::string& name, uint32_t world_size, uint32_t max_workers,
                     uint32_t min_workers = 0) {
    return Join(ElasticHello(name, world_size, max_workers, min_workers));
  }
  // Reports that the member is ready. Its state is in the group "model", which is registered if
  // that has not happened yet.
  void Ready(const Joined& joined) {
    if (own_.Find("iris")->Progress().empty()) coordinator_.Register(*joined.key, 9, Model());
    coordinator_.Ready(*joined.key, 1, GroupId{0});
  }
  void HearOf(std::initializer_list<const Joined*> members) {
    for (const Joined* member : members) coordinator_.Heartbeat(*member->key);
  }
  static GroupRound First(uint64_t round) { return {GroupId{0}, Round{round}}; }
};

TEST_F(ElasticCoordinatorTest, ANewcomerEntersAtARoundThatNobodyHasPushedTo) {
  const Joined a = JoinElastic("a", 2, 3), b = JoinElastic("b", 2, 3);
  coordinator_.Register(*a.key, 1, Model());
  Ready(a);
  Ready(b);
  Push(a, 1);  // round 1 belongs to the previous epoch
  const Joined c = JoinElastic("c", 2, 3);
  ASSERT_THAT(c.key, IsOk());
  const Epoch epoch = c.link->Last<Epoch>();
  EXPECT_EQ(epoch.number, 2u);
  EXPECT_THAT(NamesOf(epoch), ElementsAre("a", "b", "c"));
  EXPECT_THAT(epoch.first_rounds, ElementsAre(First(2)));
  ASSERT_TRUE(epoch.handover.has_value());
  EXPECT_EQ(epoch.handover->donor, a.key->member);
  EXPECT_THAT(epoch.handover->to, ElementsAre(c.key->member));
  EXPECT_THAT(epoch.handover->rounds, ElementsAre(First(2)));
  EXPECT_EQ(a.link->Last<Epoch>(), epoch);
}

TEST_F(ElasticCoordinatorTest, NobodyEntersBeforeAllMembersAreReady) {
  const Joined a = JoinElastic("a", 2, 3), b = JoinElastic("b", 2, 3);
  Ready(a);
  const Joined c = JoinElastic("c", 2, 3);
  EXPECT_EQ(c.link->Count<Epoch>(), 0u);
  EXPECT_THAT(c.link->Last<Waiting>().reason, HasSubstr("\"b\" has not reported that it is ready"));
  Ready(b);
  EXPECT_EQ(c.link->Last<Epoch>().number, 2u);
}

TEST_F(ElasticCoordinatorTest, NewcomersWaitForThoseBeforeThem) {
  const Joined a = JoinElastic("a", 1, 3);
  Ready(a);
  const Joined b = JoinElastic("b", 1, 3), c = JoinElastic("c", 1, 3);
  EXPECT_EQ(b.link->Last<Epoch>().number, 2u);
  EXPECT_EQ(c.link->Count<Epoch>(), 0u);
  EXPECT_THAT(c.link->Last<Waiting>().reason, HasSubstr("\"b\" is not up to date yet"));
  Ready(b);
  EXPECT_EQ(c.link->Last<Epoch>().number, 3u);
  EXPECT_THAT(c.link->Last<Epoch>().handover->to, ElementsAre(c.key->member));
}

// The open round of the member may belong to an epoch that began and ended while the member was
// disconnected.
TEST_F(ElasticCoordinatorTest, AMemberThatWasOutOfReachHearsOfEveryEpochSince) {
  const Joined a = JoinElastic("a", 2, 4), b = JoinElastic("b", 2, 4);
  coordinator_.Register(*a.key, 1, Model());
  Ready(a);
  Ready(b);
  coordinator_.LinkBroken(*b.key, b.link.get());
  const Joined c = JoinElastic("c", 2, 4);
  Ready(c);
  const Joined d = JoinElastic("d", 2, 4);
  std::vector<uint64_t> heard;
  for (const Epoch& epoch : Rejoin(b).link->All<Epoch>()) heard.push_back(epoch.number);
  EXPECT_THAT(heard, ElementsAre(1, 2, 3));
}

TEST_F(ElasticCoordinatorTest, WhenTheDonorIsGoneTheNextEpochHasAnother) {
  const Joined a = JoinElastic("a", 2, 3), b = JoinElastic("b", 2, 3);
  coordinator_.Register(*a.key, 1, Model());
  Ready(a);
  Ready(b);
  const Joined c = JoinElastic("c", 2, 3);
  Push(b, 1);  // a round of the epoch that includes the newcomer
  coordinator_.LinkBroken(*a.key, a.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  const Epoch epoch = c.link->Last<Epoch>();
  EXPECT_EQ(epoch.number, 3u);
  EXPECT_EQ(epoch.handover->donor, b.key->member);
  // The epoch's first round is still the one at which the newcomer entered.
  EXPECT_THAT(epoch.first_rounds, ElementsAre(First(2)));
  EXPECT_THAT(epoch.handover->rounds, ElementsAre(First(1)));
}

TEST_F(ElasticCoordinatorTest, WithoutAnybodyWhoHasTheStateTheJobIsOver) {
  const Joined a = JoinElastic("a", 1, 2);
  Ready(a);
  const Joined b = JoinElastic("b", 1, 2);
  coordinator_.LinkBroken(*a.key, a.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  ExpectError(b.link->Last<Expelled>().reason, absl::StatusCode::kDataLoss,
              {"no worker is left that has the job's state"});
  coordinator_.Tick();
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

TEST_F(ElasticCoordinatorTest, WhenTheStatesHoldersHaveEndedTheNewcomersAreRefusedAndTheJobIsDone) {
  const Joined a = JoinElastic("a", 1, 3);
  coordinator_.Register(*a.key, 1, Model());
  Ready(a);
  const Joined b = JoinElastic("b", 1, 3);  // in the epoch, and behind
  const Joined c = JoinElastic("c", 1, 3);  // waits until "b" is up to date
  ASSERT_EQ(b.link->Last<Epoch>().handover->to, std::vector<MemberId>{b.key->member});
  ASSERT_EQ(c.link->Count<Epoch>(), 0u);
  coordinator_.End(*a.key, 2, GroupId{0}, Round{5}, true);
  coordinator_.Leave(*a.key, 3, {First(5)});
  for (const Joined* late : {&b, &c}) {
    ExpectError(late->link->Last<Expelled>().reason, kExhausted, {"reached the end of its data"});
  }
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  EXPECT_TRUE(own_.all_done());
}

TEST_F(ElasticCoordinatorTest, AStateThatLeavesBeforeTheEndOfTheDataIsLost) {
  const Joined a = JoinElastic("a", 1, 2);
  coordinator_.Register(*a.key, 1, Model());
  Ready(a);
  const Joined b = JoinElastic("b", 1, 2);
  coordinator_.Leave(*a.key, 3, {First(5)});
  ExpectError(b.link->Last<Expelled>().reason, absl::StatusCode::kDataLoss,
              {"no worker is left that has the job's state"});
  coordinator_.Tick();
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  EXPECT_FALSE(own_.all_done());
}

TEST_F(ElasticCoordinatorTest, ANewcomerThatIsNotBroughtUpToDateIsDropped) {
  const Joined a = JoinElastic("a", 1, 2);
  Ready(a);
  const Joined b = JoinElastic("b", 1, 2);
  for (int i = 0; i < 7; ++i) {
    clock_.Advance(absl::Seconds(10));
    HearOf({&a, &b});
    coordinator_.Tick();
  }
  ExpectError(b.link->Last<Expelled>().reason, kFailed, {"\"b\"", "state within 60.0s"});
  EXPECT_THAT(NamesOf(a.link->Last<Epoch>()), ElementsAre("a"));
  EXPECT_FALSE(a.link->Last<Epoch>().handover.has_value());
}

TEST_F(ElasticCoordinatorTest, ASuccessorIsAdmittedAtOnceIfTheOldStreamIsBroken) {
  const Joined a = JoinElastic("a", 2, 2), b = JoinElastic("b", 2, 2);
  Ready(a);
  Ready(b);
  ExpectError(JoinElastic("b", 2, 2).key, absl::StatusCode::kAlreadyExists, {"\"b\""});
  coordinator_.LinkBroken(*b.key, b.link.get());
  const Joined again = JoinElastic("b", 2, 2);
  ASSERT_THAT(again.key, IsOk());
  EXPECT_NE(again.key->member, b.key->member);
  EXPECT_THAT(NamesOf(again.link->Last<Epoch>()), ElementsAre("a", "b"));
  EXPECT_THAT(Journal(), HasSubstr("superseded by a new worker on"));
  // The old incarnation is fenced on the control plane and on the data plane.
  ExpectError(Rejoin(b).key, kFailed, {"no longer a member", "rejoin"});
}

TEST_F(ElasticCoordinatorTest, TakesNoMoreThanTheMost) {
  const Joined a = JoinElastic("a", 1, 2);
  Ready(a);
  const Joined b = JoinElastic("b", 1, 2);
  ExpectError(JoinElastic("c", 1, 2).key, kExhausted, {"\"iris\"", "2 of 2"});
}

TEST_F(ElasticCoordinatorTest, TakesNobodyWhenItsDataHasEnded) {
  const Joined a = JoinElastic("a", 1, 2);
  coordinator_.Register(*a.key, 1, Model());
  Ready(a);
  coordinator_.End(*a.key, 2, GroupId{0}, Round{5}, true);
  ExpectError(JoinElastic("b", 1, 2).key, kExhausted, {"reached the end of its data"});
}

TEST_F(ElasticCoordinatorTest, RefusesOtherTermsAndNamesBoth) {
  const Joined a = JoinElastic("a", 2, 4, 1);
  ExpectError(JoinElastic("b", 2, 3, 1).key, kFailed, {"max_workers 4", "max_workers 3"});
  ExpectError(Join("b", 2).key, kFailed, {"max_workers 4", "max_workers 0"});
}

TEST_F(ElasticCoordinatorTest, RefusesTermsThatContradictEachOther) {
  ExpectError(JoinElastic("a", 3, 2).key, kInvalid, {"world_size is 3", "max_workers 2"});
  ExpectError(JoinElastic("a", 3, 4, 5).key, kInvalid, {"min_workers 5"});
  ExpectError(JoinElastic("a", 3, 0, 1).key, kInvalid, {"min_workers is 1"});
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

TEST_F(ElasticCoordinatorTest, BelowTheMinimumRoundsAreHeldAndTheWaitIsExplained) {
  const Joined a = JoinElastic("a", 2, 2, 2), b = JoinElastic("b", 2, 2, 2);
  coordinator_.Register(*a.key, 1, Model());
  Ready(a);
  Ready(b);
  coordinator_.LinkBroken(*b.key, b.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  EXPECT_EQ(a.link->Last<Epoch>().number, 1u);
  clock_.Advance(absl::Seconds(1));
  coordinator_.Tick();
  EXPECT_THAT(a.link->Last<Waiting>().reason, HasSubstr("waits for workers: 1 of at least 2"));
  EXPECT_THAT(Journal(), HasSubstr("waits for workers: 1 of at least 2"));
  const auto held = Push(a, 1);
  EXPECT_EQ(held->count(), 0u);
  const std::vector<RoundWait> waits = own_.Find("iris")->Explain(std::nullopt);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_THAT(ToString(waits[0]), HasSubstr("waits for workers: 1 of at least 2"));
  const Joined again = JoinElastic("b", 2, 2, 2);
  EXPECT_EQ(again.link->Last<Epoch>().number, 2u);
  EXPECT_THAT(again.link->Last<Epoch>().first_rounds, ElementsAre(First(1)));
}

TEST_F(ElasticCoordinatorTest, AMemberThatLeavesMakesTheNextEpochSmaller) {
  const Joined a = JoinElastic("a", 2, 2), b = JoinElastic("b", 2, 2);
  Ready(a);
  Ready(b);
  coordinator_.Leave(*b.key, 3, {});
  EXPECT_EQ(b.link->Last<Farewell>().request, 3u);
  EXPECT_THAT(NamesOf(a.link->Last<Epoch>()), ElementsAre("a"));
}

TEST_F(ElasticCoordinatorTest, AMemberThatIsBehindForTooLongIsDroppedAndToldSo) {
  Hello hello_a = ElasticHello("a", 2, 2), hello_b = ElasticHello("b", 2, 2);
  hello_a.step_timeout = hello_b.step_timeout = absl::Seconds(10);
  const Joined a = Join(hello_a), b = Join(hello_b);
  coordinator_.Register(*a.key, 1, Model());
  Ready(a);
  Ready(b);
  const auto beat = [&](uint64_t of_a, uint64_t of_b) {
    coordinator_.Heartbeat(*a.key, {{First(of_a)}});
    coordinator_.Heartbeat(*b.key, {{First(of_b)}});
    coordinator_.Tick();
  };
  const auto close = [&](uint64_t round) {
    Push(a, round);
    Push(b, round);
  };
  for (uint64_t round = 1; round <= 3; ++round) close(round);
  beat(4, 3);
  clock_.Advance(absl::Seconds(9));
  close(4);
  beat(5, 4);  // slow, but not hung
  clock_.Advance(absl::Seconds(9));
  beat(5, 4);
  EXPECT_EQ(b.link->Count<Expelled>(), 0u);
  clock_.Advance(absl::Seconds(2));
  beat(5, 4);
  ExpectError(b.link->Last<Expelled>().reason, kFailed,
              {"\"b\"", "behind the others, in step 4", "step_timeout is 10.0s"});
  EXPECT_THAT(NamesOf(a.link->Last<Epoch>()), ElementsAre("a"));
}

TEST_F(ElasticCoordinatorTest, WhenItsDataHasEndedNobodyIsBehind) {
  Hello hello_a = ElasticHello("a", 2, 2), hello_b = ElasticHello("b", 2, 2);
  hello_a.step_timeout = hello_b.step_timeout = absl::Seconds(10);
  const Joined a = Join(hello_a), b = Join(hello_b);
  coordinator_.Register(*a.key, 1, Model());
  for (const Joined* joined : {&a, &b}) {
    Ready(*joined);
    coordinator_.End(*joined->key, 2, GroupId{0}, Round{4}, true);
  }
  for (int i = 0; i < 4; ++i) {
    coordinator_.Heartbeat(*a.key, {{First(5)}});  // a is in a step that never opens
    coordinator_.Heartbeat(*b.key, {{First(4)}});
    coordinator_.Tick();
    clock_.Advance(absl::Seconds(9));
  }
  EXPECT_EQ(b.link->Count<Expelled>(), 0u);
}

TEST_F(ElasticCoordinatorTest, AnEvictedWorkerIsToldWhy) {
  const Joined a = JoinElastic("a", 2, 2), b = JoinElastic("b", 2, 2);
  ExpectError(coordinator_.Evict("iris", "guess", "b", "slow"), absl::StatusCode::kPermissionDenied,
              {"\"iris\""});
  ExpectError(coordinator_.Evict("iris", "secret", "c", "slow"), absl::StatusCode::kNotFound,
              {"\"c\""});
  ExpectError(coordinator_.Evict("mnist", "secret", "b", "slow"), absl::StatusCode::kNotFound,
              {"\"mnist\""});
  ASSERT_TRUE(coordinator_.Evict("iris", "secret", "b", "its disk is full").ok());
  ExpectError(b.link->Last<Expelled>().reason, absl::StatusCode::kAborted,
              {"evicted: its disk is full"});
  EXPECT_THAT(NamesOf(a.link->Last<Epoch>()), ElementsAre("a"));
}

TEST(ElasticMemoryTest, WhatIsHandedOverIsHeldOnceHoweverManyMembersThereAre) {
  GroupSpec state{"state/model", {{"w", DType::kF32, {100}}}, Reduction::kSum};
  state.policy = First{};
  MemoryBudget budget(1, [](ServerIndex) { return uint64_t{8'000}; });
  const GroupRegistry groups(1000, {}, budget);
  EXPECT_THAT(groups.Plan(state, {}).status(), IsOk());
  state.policy = Sync{};
  ExpectError(groups.Plan(state, {}).status(), kExhausted,
              {"400 bytes", "1000 members' contributions"});
}

class ElasticFollowedTest : public ElasticCoordinatorTest {
 protected:
  ElasticFollowedTest() : ElasticCoordinatorTest(2) {
    server_ = std::make_shared<FakeServer>(1, 50, clock_);
    EXPECT_TRUE(coordinator_.AttachServer(server_->identity, server_).ok());
  }
  std::shared_ptr<FakeServer> server_;
};

TEST_F(ElasticFollowedTest, ANewcomerHearsOfItsEpochWhenEveryServerHasAppliedIt) {
  const Joined a = JoinElastic("a", 1, 2);
  coordinator_.Register(*a.key, 1, Model());
  server_->Apply(coordinator_);
  Ready(a);
  const Joined b = JoinElastic("b", 1, 2);
  EXPECT_EQ(b.link->Count<Epoch>(), 0u);
  server_->ApplyOne(coordinator_);  // Applies the proposal. The epoch follows.
  EXPECT_EQ(b.link->Count<Epoch>(), 0u);
  server_->ApplyOne(coordinator_);
  EXPECT_EQ(b.link->Last<Epoch>().number, 2u);
}

TEST_F(ElasticFollowedTest, AMemberThatHasLeftAndDiesBeforeItHearsSoIsForgotten) {
  const Joined a = JoinElastic("a", 2, 2), b = JoinElastic("b", 2, 2);
  server_->Apply(coordinator_);
  Ready(a);
  Ready(b);
  server_->Apply(coordinator_);
  // Leaves, and its stream breaks before every server has applied that.
  const auto leave = [this](const Joined& member) {
    coordinator_.Leave(*member.key, 7, {});
    coordinator_.LinkBroken(*member.key, member.link.get());
    server_->Apply(coordinator_);
    EXPECT_EQ(member.link->Count<Farewell>(), 0u);
  };
  const auto pass = [this](absl::Duration time) {
    clock_.Advance(time);
    coordinator_.Tick();
    server_->Apply(coordinator_);
  };
  leave(b);
  // It has as long as a member whose stream broke.
  pass(absl::Seconds(4));
  const Joined again = Rejoin(b);
  ASSERT_THAT(again.key, IsOk());
  coordinator_.Leave(*again.key, 8, {});
  EXPECT_EQ(again.link->Last<Farewell>().request, 8u);
  const Joined c = JoinElastic("c", 2, 2);
  server_->Apply(coordinator_);
  ASSERT_THAT(NamesOf(a.link->Last<Epoch>()), ElementsAre("a", "c"));
  Ready(c);
  leave(c);
  pass(absl::Seconds(6));
  ExpectError(Rejoin(c).key, kFailed, {"no longer a member"});
}

TEST_F(ElasticFollowedTest, ANewcomerThatDiesWhileItsEpochIsProposedIsNotInIt) {
  const Joined a = JoinElastic("a", 1, 2);
  server_->Apply(coordinator_);
  Ready(a);
  const Joined b = JoinElastic("b", 1, 2);
  coordinator_.LinkBroken(*b.key, b.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  server_->Apply(coordinator_);
  EXPECT_THAT(NamesOf(a.link->Last<Epoch>()), ElementsAre("a"));
  EXPECT_FALSE(a.link->Last<Epoch>().handover.has_value());
}

}  // namespace
}  // namespace syncgrads::server
