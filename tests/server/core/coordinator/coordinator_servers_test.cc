// A coordinator whose second server applies changes late, disconnects, reconnects, or loses its
// state.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// Unlike the shared fixture of the same name, this one starts without the second server.
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

TEST_F(TwoServersTest, AServerThatAppliesNothingIsNamed) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  const auto tick = [this](absl::Duration later) {
    clock_.Advance(later);
    coordinator_.Tick();
  };
  tick(absl::ZeroDuration());
  tick(absl::Seconds(4));
  EXPECT_EQ(a.link->Count<Waiting>(), 0u);
  tick(absl::Seconds(1));
  EXPECT_EQ(a.link->Last<Waiting>().reason,
            "changes of the plan wait for server 1 at 10.0.0.1:7000");
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  tick(absl::Seconds(1));
  EXPECT_THAT(a.link->Last<Waiting>().reason, HasSubstr("10.0.0.1:7000, which is not connected"));
  const size_t before = a.link->Count<Waiting>();
  server->waiting.clear();
  ASSERT_THAT(coordinator_.AttachServer(server->identity, server), IsOk());
  server->Apply(coordinator_);
  tick(absl::Seconds(1));
  tick(absl::Seconds(10));
  EXPECT_EQ(a.link->Count<Waiting>(), before);
  EXPECT_EQ(a.link->Count<Epoch>(), 1u);
}

TEST_F(TwoServersTest, DropsNoWorkerThatWaitsForTheOtherServer) {
  // A worker sends no heartbeats before it has been admitted.
  const Joined a = Join("a", 1);
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(31));
    coordinator_.Tick();
  }
  EXPECT_EQ(a.link->Count<Expelled>(), 0u);
  Attach(11)->Apply(coordinator_);
  clock_.Advance(absl::Seconds(29));
  coordinator_.Tick();
  EXPECT_EQ(a.link->Count<Expelled>(), 0u);
  EXPECT_EQ(a.link->Count<Epoch>(), 1u);
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

TEST_F(TwoServersTest, AJobThatAServerHasGivenUpIsClosed) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  server->Apply(coordinator_);
  const absl::Status full = absl::ResourceExhaustedError("the disk is full");
  coordinator_.StoreFailed(ServerIndex{1}, {"iris", Generation{99}, full});
  coordinator_.Tick();
  EXPECT_EQ(a.link->Count<Expelled>(), 0u) << "it has abandoned an earlier generation";
  coordinator_.StoreFailed(ServerIndex{1}, {"iris", Generation{1}, full});
  coordinator_.Tick();
  ExpectError(a.link->Last<Expelled>().reason, absl::StatusCode::kResourceExhausted,
              {"\"iris\"", "server 1", "the disk is full"});
}

TEST_F(TwoServersTest, TheNewEpochBeginsWhereNoServerHasAContribution) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 2), b = Join("b", 2);
  GroupSpec spec = Model();
  spec.chunk_bytes = 8;  // so that each server has a chunk
  coordinator_.Register(*a.key, 1, spec);
  server->Apply(coordinator_);
  // Round 1 has a contribution on the other server.
  PushHeader header;
  header.generation = Generation{1};
  header.chunk = ChunkId{1};
  header.round = Round{1};
  header.member = a.key->member;
  header.incarnation = a.hello.incarnation;
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

// Otherwise the rounds of the group would belong to one epoch on one server and to the next epoch
// on another.
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
  coordinator_.DetachServer(ServerIndex{1}, &stale);  // an earlier link of the server
  EXPECT_THAT(Journal(), Not(HasSubstr("reach")));
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  EXPECT_THAT(Journal(), HasSubstr("warning: server 1 is unreachable"));

  server->identity.applied = server->jobs.applied();
  ASSERT_THAT(coordinator_.AttachServer(server->identity, server), IsOk());
  coordinator_.Leave(*a.key, 1, {});
  server->Apply(coordinator_);
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  EXPECT_THAT(Journal(), HasSubstr("debug: server 1 has disconnected; no job is open"));
}

TEST_F(TwoServersTest, AGroupThatDoesNotFitAnotherServerIsRefusedWithItsNameAndBothNumbers) {
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  server->Apply(coordinator_);
  // The group has a chunk on each server. Each chunk needs memory for a contribution and two
  // results, and less than 8 KiB for bookkeeping.
  const GroupSpec spec{"big", {{"t", DType::kF32, {500}}}, Reduction::kSum, 1000};
  coordinator_.HasRoom(ServerIndex{1}, server.get(), 2999);
  coordinator_.Register(*a.key, 1, spec);
  ASSERT_EQ(a.link->Count<Refused>(), 1u);
  ExpectError(a.link->Last<Refused>().error, absl::StatusCode::kResourceExhausted,
              {"\"big\"", "2000 bytes in 2 chunks", "on server 1", "2999 bytes are available"});
  coordinator_.HasRoom(ServerIndex{1}, server.get(), 3000 + (8 << 10));
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
  coordinator_.Restore(store, {}, {});
  const std::shared_ptr<FakeServer> server = Attach(11);
  const Joined a = Join("a", 1);
  server->Apply(coordinator_);
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  store.records.clear();
  Attach(12);
  // If the server were stored first, a coordinator killed between the two records would not close
  // the job.
  ASSERT_THAT(store.records, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<PlanChange>(store.records[0]));
  EXPECT_TRUE(std::holds_alternative<ServerSeen>(store.records[1]));
}

TEST_F(TwoServersTest, AServerThatCannotBeStoredIsRefusedAndMayTryAgain) {
  KeptRecords store;
  coordinator_.Restore(store, {}, {});
  store.full = true;
  for (const uint64_t incarnation : {11, 12}) {
    auto server = std::make_shared<FakeServer>(1, incarnation, clock_);
    ExpectError(coordinator_.AttachServer(server->identity, server),
                absl::StatusCode::kResourceExhausted, {"the disk is full"});
  }
  store.full = false;
  const std::shared_ptr<FakeServer> server = Attach(13);
  ASSERT_THAT(store.records, SizeIs(1));
  // A server that reconnects is stored already.
  store.full = true;
  coordinator_.DetachServer(ServerIndex{1}, server.get());
  EXPECT_THAT(coordinator_.AttachServer(server->identity, server), IsOk());
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
  // The result is the same if the server disconnects while the job waits for it.
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
