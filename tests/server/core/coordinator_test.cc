#include "server/core/coordinator.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/store.h"
#include "tests/server/core/coordinator_fixture.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
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

TEST_F(CoordinatorTest, GivesEveryMemberTheSamePlanOfAGroup) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 7, Model());
  coordinator_.Register(*b.key, 9, Model());
  EXPECT_EQ(a.link->Last<Registered>().request, 7u);
  EXPECT_EQ(b.link->Last<Registered>().request, 9u);
  EXPECT_EQ(a.link->Last<Registered>().plan, b.link->Last<Registered>().plan);
  GroupSpec other = Model();
  other.name = "other";
  coordinator_.Register(*b.key, 10, other);
  EXPECT_EQ(b.link->Last<Registered>().plan->id, GroupId{1});
  EXPECT_THAT(own_.Find("iris")->Progress(), SizeIs(2));
}

TEST_F(CoordinatorTest, RefusesAGroupThatIsNotTheOthersAndNamesBothValues) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  GroupSpec other = Model();
  other.tensors[0].shape = {5};
  coordinator_.Register(*b.key, 2, other);
  EXPECT_EQ(b.link->Last<Refused>().request, 2u);
  ExpectError(b.link->Last<Refused>().error, kInvalid,
              {"\"kernel\"", "f32[5]", "f32[4]", "worker \"a\""});
  EXPECT_EQ(b.link->Count<Registered>(), 0u);
  EXPECT_EQ(a.link->Count<Refused>(), 0u);
}

TEST_F(CoordinatorTest, RefusesAGroupThatCannotBeServed) {
  const Joined a = Join("a", 1);
  GroupSpec spec = Model();
  spec.rule = Reduction::kAverage;
  spec.tensors[0].dtype = DType::kI32;
  coordinator_.Register(*a.key, 1, spec);
  ExpectError(a.link->Last<Refused>().error, kInvalid, {"\"kernel\"", "i32", "average"});
  EXPECT_THAT(own_.Find("iris")->Progress(), IsEmpty());
}

TEST(CoordinatorMemoryTest, AGroupThatDoesNotFitIsRefusedWithBothNumbers) {
  FakeClock clock;
  LineJournal journal;
  Jobs own(ServerIndex{0}, clock);
  CoordinatorOptions options;
  options.available_memory = [] { return uint64_t{3'000}; };
  Coordinator coordinator(options, PlanLog(1, ""), own, clock, journal);
  auto link = std::make_shared<FakeMember>();
  Introduction hello;
  hello.protocol_version = kProtocolVersion;
  hello.job = "big";
  hello.incarnation = Incarnation{1};
  hello.world_size = 1;
  const absl::StatusOr<MemberKey> member = coordinator.Admit(hello, link);
  ASSERT_TRUE(member.ok());

  // One contribution and two results, of 1000 bytes each: it fits, just.
  coordinator.Register(*member, 1, {"fits", {{"t", DType::kF32, {250}}}, Reduction::kSum, 0});
  EXPECT_EQ(link->Last<Registered>().request, 1u);
  coordinator.Register(*member, 2, {"big", {{"t", DType::kF32, {251}}}, Reduction::kSum, 0});
  EXPECT_EQ(link->Last<Refused>().request, 2u);
  ExpectError(link->Last<Refused>().error, absl::StatusCode::kResourceExhausted,
              {"\"big\"", "3 times its 1004 bytes", "3000 bytes are available"});
  // An optimizer's slots count as well.
  coordinator.Register(*member, 3, {"adam", {{"t", DType::kF32, {200}}}, Optimizer(Adam{}), 0});
  EXPECT_EQ(link->Last<Refused>().request, 3u);
  ExpectError(link->Last<Refused>().error, absl::StatusCode::kResourceExhausted,
              {"7 times its 800 bytes"});
}

TEST_F(CoordinatorTest, RefusesOnBehalfOfWhoeverCouldNotReadTheRequest) {
  const Joined a = Join("a", 1);
  coordinator_.Refuse(*a.key, 4, absl::InvalidArgumentError("unknown dtype 99"));
  EXPECT_EQ(a.link->Last<Refused>().request, 4u);
  EXPECT_EQ(a.link->generations.back(), Generation{1});
}

TEST_F(CoordinatorTest, AnEndIsAnsweredAndRefusedForAGroupThatThereIsNot) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.End(*a.key, 2, GroupId{0}, Round{0}, false);
  EXPECT_EQ(a.link->Last<Done>().request, 2u);
  EXPECT_THAT(Push(b, 1)->error(), IsOk());
  coordinator_.End(*a.key, 3, GroupId{4}, Round{0}, false);
  EXPECT_EQ(a.link->Last<Refused>().request, 3u);
  ExpectError(a.link->Last<Refused>().error, kInvalid, {"group 4", "\"iris\"", "1 groups"});
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

// Keeps what is stored.
class KeptRecords : public Store {
 public:
  absl::Status Append(const Stored& record) override {
    records.push_back(record);
    return absl::OkStatus();
  }
  absl::Status StartAfresh(const PlanStart&) override { return absl::OkStatus(); }

  bool HasClosing() const {
    return std::any_of(records.begin(), records.end(), [](const Stored& record) {
      const auto* change = std::get_if<PlanChange>(&record);
      return change != nullptr && std::holds_alternative<JobClosed>(change->kind);
    });
  }
  std::vector<Stored> records;
};

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

// With a second server.
class TwoServersTest : public CoordinatorTest {
 protected:
  TwoServersTest() : CoordinatorTest(2) {}

  std::shared_ptr<FakeServer> Attach(uint64_t incarnation) {
    auto server = std::make_shared<FakeServer>(1, incarnation, clock_);
    EXPECT_THAT(coordinator_.AttachServer(server->identity, server), IsOk());
    return server;
  }
};

TEST_F(TwoServersTest, BeginsWhenTheOtherServerIsThereToo) {
  const Joined a = Join("a", 1);
  EXPECT_EQ(a.link->Count<Welcome>(), 0u);
  EXPECT_THAT(a.link->Last<Waiting>().reason, HasSubstr("server 1 has not started"));
  const std::shared_ptr<FakeServer> server = Attach(11);
  EXPECT_THAT(a.link->Last<Welcome>().servers, ElementsAre("10.0.0.0:7000", "10.0.0.1:7000"));
  EXPECT_EQ(a.link->Count<Epoch>(), 0u) << "server 1 does not know of it yet";
  server->Apply(coordinator_);
  EXPECT_EQ(a.link->Count<Epoch>(), 1u);
  ASSERT_NE(server->jobs.Find("iris"), nullptr) << "a job that was opened before it came";
  EXPECT_EQ(server->jobs.Find("iris")->epoch()->number, 1u);
}

TEST_F(TwoServersTest, AnswersOnlyWhenEveryServerHasApplied) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 2), b = Join("b", 2);
  server->Apply(coordinator_);
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.Register(*b.key, 1, Model());
  EXPECT_EQ(a.link->Count<Registered>() + b.link->Count<Registered>(), 0u);
  server->Apply(coordinator_);
  EXPECT_EQ(a.link->Count<Registered>(), 1u);
  EXPECT_EQ(b.link->Count<Registered>(), 1u);
  coordinator_.End(*a.key, 2, GroupId{0}, Round{0}, true);
  EXPECT_EQ(a.link->Count<Done>(), 0u);
  server->Apply(coordinator_);
  EXPECT_EQ(a.link->Last<Done>().request, 2u);
  coordinator_.Leave(*a.key, 3, {});
  EXPECT_EQ(a.link->Count<Farewell>(), 0u);
  server->Apply(coordinator_);
  EXPECT_EQ(a.link->Count<Farewell>(), 1u);
}

TEST_F(TwoServersTest, TheNewEpochBeginsWhereNoServerHasAContribution) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 2), b = Join("b", 2);
  GroupSpec spec = Model();
  spec.chunk_bytes = 8;  // a chunk on each server
  coordinator_.Register(*a.key, 1, spec);
  server->Apply(coordinator_);
  // On the other server, round 1 has begun.
  PushHeader header;
  header.generation = Generation{1};
  header.chunk = ChunkId{1};
  header.round = Round{1};
  header.member = a.key->member;
  header.incarnation = a.introduction.incarnation;
  const auto sink = std::make_shared<RecordingSink>();
  server->jobs.Find("iris")->Push(header, PayloadOf(std::string(8, '\0')), sink);
  coordinator_.LinkBroken(*b.key, b.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  EXPECT_EQ(a.link->Last<Epoch>().number, 1u) << "server 1 has not said how far it is";
  server->Apply(coordinator_);
  EXPECT_EQ(a.link->Last<Epoch>().number, 2u);
  EXPECT_THAT(a.link->Last<Epoch>().first_rounds, ElementsAre(GroupRound{GroupId{0}, Round{2}}));
  EXPECT_EQ(server->jobs.Find("iris")->epoch(), a.link->Last<Epoch>());
  EXPECT_EQ(sink->count(), 1u);
}

TEST_F(TwoServersTest, WhoGoesDuringAChangeOfTheEpochIsLeftOutAtItsEnd) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 3), b = Join("b", 3), c = Join("c", 3);
  server->Apply(coordinator_);
  coordinator_.LinkBroken(*b.key, b.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  coordinator_.LinkBroken(*c.key, c.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Heartbeat(*a.key);
  coordinator_.Tick();
  server->Apply(coordinator_);
  EXPECT_THAT(NamesOf(a.link->Last<Epoch>()), ElementsAre("a"));
  EXPECT_EQ(a.link->Last<Epoch>().number, 2u);
}

// Its rounds would otherwise belong to one epoch on one server and to the next on
// another.
TEST_F(TwoServersTest, AGroupThatIsRegisteredDuringAChangeOfTheEpochBeginsAfterIt) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 2), b = Join("b", 2);
  server->Apply(coordinator_);
  coordinator_.LinkBroken(*b.key, b.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  coordinator_.Register(*a.key, 1, Model());
  EXPECT_THAT(own_.Find("iris")->Progress(), IsEmpty());
  server->Apply(coordinator_);
  ASSERT_EQ(a.link->Count<Registered>(), 1u);
  EXPECT_EQ(own_.Find("iris")->epoch()->number, 2u);
  EXPECT_THAT(own_.Find("iris")->Progress(), SizeIs(1));
  EXPECT_THAT(server->jobs.Find("iris")->Progress(), SizeIs(1));
}

TEST_F(TwoServersTest, AServerThatComesBackIsSentWhatItMissed) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  server->Apply(coordinator_);
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  coordinator_.Register(*a.key, 1, Model());
  EXPECT_THAT(server->waiting, IsEmpty());
  server->identity.applied = server->jobs.applied();
  ASSERT_THAT(coordinator_.AttachServer(server->identity, server), IsOk());
  server->Apply(coordinator_);
  EXPECT_EQ(a.link->Count<Registered>(), 1u);
}

TEST_F(TwoServersTest, AServerThatIsNeededIsMissedAndOneThatIsNotIsNot) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  server->Apply(coordinator_);
  const FakeServer stale(1, 11, clock_);
  coordinator_.DetachServer(ServerIndex{1}, &stale);  // the link before
  EXPECT_THAT(Journal(), Not(HasSubstr("reach")));
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  EXPECT_THAT(Journal(), HasSubstr("warning: server 1 is out of reach"));

  server->identity.applied = server->jobs.applied();
  ASSERT_THAT(coordinator_.AttachServer(server->identity, server), IsOk());
  coordinator_.Leave(*a.key, 1, {});
  server->Apply(coordinator_);
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  EXPECT_THAT(Journal(), HasSubstr("note: server 1 follows no more; no job is open"));
}

TEST_F(TwoServersTest, AGroupThatDoesNotFitAnotherServerIsRefusedWithItsNameAndBothNumbers) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  server->Apply(coordinator_);
  // Two chunks, one on each server: of each a contribution and two results.
  const GroupSpec spec{"big", {{"t", DType::kF32, {500}}}, Reduction::kSum, 1000};
  coordinator_.HasRoom(ServerIndex{1}, server.get(), 2999);
  coordinator_.Register(*a.key, 1, spec);
  ASSERT_EQ(a.link->Count<Refused>(), 1u);
  ExpectError(a.link->Last<Refused>().error, absl::StatusCode::kResourceExhausted,
              {"\"big\"", "3 times its 1000 bytes on server 1", "2999 bytes are available"});
  coordinator_.HasRoom(ServerIndex{1}, server.get(), 3000);
  coordinator_.Register(*a.key, 2, spec);
  server->Apply(coordinator_);
  EXPECT_EQ(a.link->Count<Registered>(), 1u);
}

TEST_F(TwoServersTest, AServerThatRestartsWithoutItsStateEndsTheJob) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  server->Apply(coordinator_);
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  const std::shared_ptr<FakeServer> successor = Attach(12);
  ExpectError(a.link->Last<Expelled>().reason, absl::StatusCode::kDataLoss,
              {"\"iris\"", "server 1", "restarted"});
  successor->Apply(coordinator_);
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  const Joined again = Join("a", 1);
  successor->Apply(coordinator_);
  EXPECT_EQ(again.link->Count<Epoch>(), 1u);
  EXPECT_EQ(successor->jobs.Find("iris")->generation(), Generation{2});
}

TEST_F(TwoServersTest, AServerWithoutItsStateIsNotTakenForSeenBeforeItsJobsAreClosed) {
  KeptRecords store;
  ASSERT_THAT(own_.Restore({nullptr, &store}, {}, {}), IsOk());
  coordinator_.Restore(store, {}, {}, {});
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  server->Apply(coordinator_);
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  store.records.clear();
  Attach(12);
  // Else a coordinator that is killed in between would find nothing amiss.
  ASSERT_THAT(store.records, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<PlanChange>(store.records[0]));
  EXPECT_TRUE(std::holds_alternative<ServerSeen>(store.records[1]));
}

TEST_F(TwoServersTest, AServerThatIsGoneForGoodDoesNotKeepAClosedJobFromItsEnd) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  server->Apply(coordinator_);
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  coordinator_.Leave(*a.key, 1, {});
  EXPECT_EQ(a.link->Count<Farewell>(), 1u);
  EXPECT_EQ(coordinator_.open_jobs(), 1u) << "it may come back to hear of it";
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  // The same if it goes while the job waits for it.
  ASSERT_THAT(coordinator_.AttachServer(server->identity, server), IsOk());
  server->Apply(coordinator_);
  const Joined b = Join("b", 1);
  server->Apply(coordinator_);
  coordinator_.Leave(*b.key, 1, {});
  EXPECT_EQ(b.link->Count<Farewell>(), 0u);
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  EXPECT_EQ(b.link->Count<Farewell>(), 1u);
  EXPECT_EQ(coordinator_.open_jobs(), 1u) << "it may come back to hear of it";
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

TEST_F(TwoServersTest, NothingMoreHappensToAClosedJob) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 3), b = Join("b", 3), c = Join("c", 3);
  server->Apply(coordinator_);
  coordinator_.LinkBroken(*a.key, a.link.get());
  clock_.Advance(absl::Seconds(3));
  coordinator_.LinkBroken(*b.key, b.link.get());
  coordinator_.CloseAll("it is told to");
  clock_.Advance(absl::Seconds(3));
  coordinator_.Tick();
  EXPECT_THAT(Journal(), testing::Not(HasSubstr("is dropped")));
  server->Apply(coordinator_);
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

TEST_F(TwoServersTest, AChangeOfTheEpochOfAJobThatIsClosedMeanwhileIsForgotten) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 2), b = Join("b", 2);
  server->Apply(coordinator_);
  coordinator_.LinkBroken(*b.key, b.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.Leave(*a.key, 2, {});
  server->Apply(coordinator_);
  EXPECT_EQ(a.link->Count<Farewell>(), 1u);
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  EXPECT_THAT(Journal(), testing::Not(HasSubstr("epoch 2")));
}

}  // namespace
}  // namespace syncgrads::server
