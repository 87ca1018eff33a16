// Who is let into a job, who is dropped from it, and when it begins and ends.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/coordinator_fixture.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using MemberKey = Coordinator::MemberKey;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST_F(CoordinatorTest, BeginsWhenEverybodyIsThereRankedByAskedRankThenName) {
  const Joined b = Join("b", 4), a = Join("a", 4), d = Join("d", 4, 1);
  EXPECT_EQ(b.link->Count<Epoch>(), 0u);
  EXPECT_THAT(b.link->Last<Waiting>().reason, HasSubstr("3 of 4 workers have joined"));
  EXPECT_THAT(b.link->Last<Waiting>().reason, HasSubstr("\"a\""));
  const Joined c = Join("c", 4, 0);
  for (const Joined* joined : {&a, &b, &c, &d}) {
    ASSERT_THAT(joined->key, IsOk());
    EXPECT_THAT(NamesOf(joined->link->Last<Epoch>()), ElementsAre("c", "d", "a", "b"));
    EXPECT_EQ(joined->link->Last<Epoch>().number, 1u);
    EXPECT_EQ(joined->link->generations.back(), Generation{1});
  }
  const Welcome welcome = c.link->Last<Welcome>();
  EXPECT_TRUE(std::holds_alternative<Welcome>(c.link->signals.front()));
  EXPECT_EQ(welcome.name, "c");
  EXPECT_THAT(welcome.servers, ElementsAre("10.0.0.0:7000"));
  EXPECT_EQ(welcome.lease, absl::Seconds(30));
  EXPECT_EQ(own_.Find("iris")->epoch(), c.link->Last<Epoch>());
}

TEST_F(CoordinatorTest, AssignsANameThatNobodyHas) {
  const Joined with_rank = Join("", 4, 2), asked = Join("worker-1", 4), without = Join("", 4),
               with_taken_rank = Join("", 4, 1);
  EXPECT_EQ(with_rank.link->Last<Welcome>().name, "worker-2");
  std::vector<std::string> names;
  for (const Joined* joined : {&with_rank, &asked, &without, &with_taken_rank}) {
    ASSERT_THAT(joined->key, IsOk());
    names.push_back(joined->link->Last<Welcome>().name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end()) << testing::PrintToString(names);
}

TEST_F(CoordinatorTest, RefusesAnotherProtocolVersionAndNamesBoth) {
  Introduction hello = Hello("a", 1);
  hello.protocol_version = 9;
  ExpectError(Join(hello).key, kFailed, {"version 9", "speaks 1"});
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

TEST_F(CoordinatorTest, RefusesAnIntroductionThatIsIncomplete) {
  Introduction hello = Hello("a", 2);
  hello.job = "";
  ExpectError(Join(hello).key, kInvalid, {"no job"});
  hello = Hello("a", 2);
  hello.incarnation = Incarnation{};
  ExpectError(Join(hello).key, kInvalid, {"incarnation"});
  ExpectError(Join(Hello("a", 0)).key, kInvalid, {"world_size"});
  ExpectError(Join("a", 2, 2).key, kInvalid, {"rank 2", "2 workers"});
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

TEST_F(CoordinatorTest, RefusesAnotherTokenAndAnotherWorldSize) {
  Join("a", 2);
  Introduction hello = Hello("b", 2);
  hello.token = "guess";
  ExpectError(Join(hello).key, absl::StatusCode::kPermissionDenied, {"\"iris\""});
  ExpectError(Join("b", 3).key, kFailed, {"\"iris\"", "2 workers", "for 3"});
  EXPECT_THAT(Join("b", 2).key, IsOk());
}

TEST_F(CoordinatorTest, RefusesTheNameAndTheRankOfALiveWorkerAndSaysWhoHasIt) {
  const Joined a = Join("a", 3, 1);
  clock_.Advance(absl::Seconds(3));
  ExpectError(Join("a", 3).key, absl::StatusCode::kAlreadyExists,
              {"name \"a\"", "\"iris\"", "host-of-a", "3.0s ago"});
  ExpectError(Join("b", 3, 1).key, absl::StatusCode::kAlreadyExists, {"rank 1", "\"a\""});
  EXPECT_EQ(a.link->Count<Expelled>(), 0u);
  EXPECT_THAT(Join("b", 3, 0).key, IsOk());
}

TEST_F(CoordinatorTest, TakesNoMoreMembersThanTheJobHas) {
  const Joined a = Join("a", 1);
  ExpectError(Join("b", 1).key, absl::StatusCode::kResourceExhausted, {"\"iris\"", "begun"});
}

TEST_F(CoordinatorTest, TakesAMemberBackOnANewStream) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.LinkBroken(*a.key, a.link.get());
  clock_.Advance(absl::Seconds(4));
  coordinator_.Heartbeat(*b.key);
  const Joined again = Rejoin(a);
  ASSERT_THAT(again.key, IsOk());
  EXPECT_EQ(again.key->member, a.key->member);
  EXPECT_EQ(again.link->Last<Welcome>().member, a.key->member);
  EXPECT_EQ(again.link->Last<Epoch>().number, 1u);
  // The break of the old stream, heard of late, is nothing to the new one.
  coordinator_.LinkBroken(*a.key, a.link.get());
  clock_.Advance(absl::Seconds(20));
  coordinator_.Tick();
  EXPECT_EQ(b.link->Last<Epoch>().number, 1u);
}

TEST_F(CoordinatorTest, AWorkerThatDiedBeforeTheStartIsSuperseded) {
  const Joined first = Join("a", 2);
  coordinator_.LinkBroken(*first.key, first.link.get());
  const Joined second = Join("a", 2);
  ASSERT_THAT(second.key, IsOk());
  EXPECT_NE(second.key->member, first.key->member);
  const Joined b = Join("b", 2);
  EXPECT_THAT(NamesOf(b.link->Last<Epoch>()), ElementsAre("a", "b"));
}

TEST_F(CoordinatorTest, DropsAMemberWhoseLeaseHasEndedAndGoesOnWithoutIt) {
  const Joined a = Join("a", 3), b = Join("b", 3), c = Join("c", 3);
  coordinator_.Register(*a.key, 1, Model());
  clock_.Advance(absl::Seconds(20));
  coordinator_.Heartbeat(*a.key);
  coordinator_.Heartbeat(*b.key);
  coordinator_.Tick();
  EXPECT_EQ(c.link->Count<Expelled>(), 0u);
  clock_.Advance(absl::Seconds(11));
  coordinator_.Tick();
  const absl::Status reason = c.link->Last<Expelled>().reason;
  ExpectError(reason, kFailed, {"\"c\"", "lease of 30.0s", "31.0s ago"});
  for (const Joined* joined : {&a, &b}) {
    const Epoch epoch = joined->link->Last<Epoch>();
    EXPECT_EQ(epoch.number, 2u);
    EXPECT_THAT(NamesOf(epoch), ElementsAre("a", "b"));
    EXPECT_THAT(epoch.first_rounds, ElementsAre(GroupRound{GroupId{0}, Round{1}}));
  }
  EXPECT_EQ(own_.Find("iris")->epoch()->number, 2u);
  EXPECT_THAT(Journal(), HasSubstr("worker \"c\" on host-of-c is dropped"));
  // It is told so when it comes back.
  ExpectError(Rejoin(c).key, kFailed, {"no member", "rejoin"});
}

TEST_F(CoordinatorTest, DropsAMemberWhoseStreamBrokeAfterTheGrace) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.LinkBroken(*b.key, b.link.get());
  clock_.Advance(absl::Seconds(5));
  coordinator_.Tick();
  EXPECT_EQ(a.link->Last<Epoch>().number, 1u);
  clock_.Advance(absl::Seconds(1));
  coordinator_.Tick();
  EXPECT_EQ(a.link->Last<Epoch>().number, 2u);
  EXPECT_THAT(NamesOf(a.link->Last<Epoch>()), ElementsAre("a"));
  EXPECT_THAT(Journal(), HasSubstr("stream broke 6.0s ago, grace is 5.0s"));
}

TEST_F(CoordinatorTest, ClosesAJobWhoseLastMemberIsDropped) {
  const Joined a = Join("a", 1);
  clock_.Advance(absl::Seconds(31));
  coordinator_.Tick();
  EXPECT_EQ(own_.Find("iris"), nullptr);
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  EXPECT_TRUE(own_.all_done());
}

TEST_F(CoordinatorTest, AJobThatNeverBeganIsNoReasonToThinkThatAllIsDone) {
  const Joined a = Join("a", 2);
  clock_.Advance(absl::Seconds(31));
  coordinator_.Tick();
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  EXPECT_FALSE(own_.all_done());
}

TEST_F(CoordinatorTest, AMemberThatLeavesIsWaitedForUpToItsLastRound) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.Leave(*a.key, 5, {{GroupId{0}, Round{1}}});
  EXPECT_EQ(a.link->Last<Farewell>().request, 5u);
  const auto waiting = Push(b, 1);
  EXPECT_EQ(waiting->count(), 0u);
  Push(a, 1);
  EXPECT_EQ(waiting->count(), 1u);
  EXPECT_EQ(Push(b, 2)->count(), 1u);
}

TEST_F(CoordinatorTest, AWorkerMayLeaveBeforeTheStartAndAnotherTakeItsPlace) {
  const Joined a = Join("a", 2), b = Join("b", 3);
  EXPECT_FALSE(b.key.ok());
  coordinator_.Leave(*a.key, 1, {});
  EXPECT_EQ(a.link->Count<Farewell>(), 1u);
  // The job was closed with its only worker; it may be of another size now.
  EXPECT_THAT(Join("b", 3).key, IsOk());
}

TEST_F(CoordinatorTest, TheLastToLeaveClosesTheJobAndTheNameIsFreeForANewGeneration) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Leave(*a.key, 1, {});
  EXPECT_EQ(coordinator_.open_jobs(), 1u);
  coordinator_.Leave(*b.key, 1, {});
  EXPECT_EQ(b.link->Count<Farewell>(), 1u);
  EXPECT_EQ(b.link->Count<Expelled>(), 0u);
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  EXPECT_TRUE(own_.all_done());
  const Joined again = Join("a", 1);
  ASSERT_THAT(again.key, IsOk());
  EXPECT_EQ(again.link->generations.back(), Generation{2});
  EXPECT_EQ(own_.Find("iris")->generation(), Generation{2});
  // A worker of the old one is told so.
  ExpectError(Rejoin(b).key, kFailed, {"generation 1", "2", "rejoin"});
}

TEST_F(CoordinatorTest, OnlyTheLastOfSeveralJobsEndsEverything) {
  const Joined a = Join("a", 1);
  Introduction hello = Hello("a", 1);
  hello.job = "mnist";
  const Joined other = Join(hello);
  coordinator_.Leave(*a.key, 1, {});
  EXPECT_FALSE(own_.all_done());
  coordinator_.Leave(*other.key, 1, {});
  EXPECT_TRUE(own_.all_done());
}

TEST_F(CoordinatorTest, DrainingItTakesNoNewJobsAndGoesOnWithTheOld) {
  const Joined a = Join("a", 2);
  coordinator_.Drain();
  Introduction hello = Hello("a", 1);
  hello.job = "mnist";
  ExpectError(Join(hello).key, absl::StatusCode::kUnavailable, {"draining"});
  EXPECT_THAT(Join("b", 2).key, IsOk());
  EXPECT_EQ(a.link->Count<Epoch>(), 1u);
}

TEST_F(CoordinatorTest, ClosesEveryJobForAReason) {
  const Joined a = Join("a", 1);
  coordinator_.CloseAll("the server is shutting down");
  ExpectError(a.link->Last<Expelled>().reason, absl::StatusCode::kAborted,
              {"\"iris\"", "shutting down"});
  EXPECT_EQ(own_.Find("iris"), nullptr);
}

TEST_F(CoordinatorTest, IgnoresMembersThatItDoesNotKnow) {
  const MemberKey stranger{"iris", MemberId{5}};
  coordinator_.Heartbeat(stranger);
  coordinator_.Register(stranger, 1, Model());
  coordinator_.End(stranger, 1, GroupId{0}, Round{0}, true);
  coordinator_.Leave(stranger, 1, {});
  coordinator_.LinkBroken(stranger, nullptr);
  coordinator_.Refuse(stranger, 1, absl::InternalError(""));
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

// A member that notes what had been stored when it heard that its job is over.
class Witness : public FakeMember {
 public:
  explicit Witness(const KeptRecords& store) : store_(store) {}
  void Send(Generation generation, const JobSignal& signal) override {
    if (std::holds_alternative<Expelled>(signal)) closing_was_stored = store_.HasClosing();
    FakeMember::Send(generation, signal);
  }
  std::optional<bool> closing_was_stored;

 private:
  const KeptRecords& store_;
};

TEST_F(CoordinatorTest, ThatAJobIsClosedIsStoredBeforeAMemberHearsOfIt) {
  KeptRecords store;
  ASSERT_THAT(own_.Restore({nullptr, &store}, {}, {}), IsOk());
  coordinator_.Restore(store, {}, {}, {});
  const auto witness = std::make_shared<Witness>(store);
  ASSERT_THAT(coordinator_.Admit(Hello("a", 1), witness), IsOk());
  coordinator_.CloseAll("the test says so");
  EXPECT_EQ(witness->closing_was_stored, true);
}

}  // namespace
}  // namespace syncgrads::server
