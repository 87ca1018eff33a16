// When a job begins and ends, and which workers are admitted and dropped.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"
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
  EXPECT_EQ(b.link->Last<Waiting>().reason, "1 of 4 workers have joined: \"b\"");
  const std::string three = "3 of 4 workers have joined: \"b\", \"a\", \"d\"";
  EXPECT_EQ(d.link->Last<Waiting>().reason, three);
  coordinator_.Tick();
  EXPECT_EQ(b.link->Last<Waiting>().reason, three);
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
  Hello hello = NewHello("a", 1);
  hello.protocol_version = 9;
  ExpectError(Join(hello).key, kFailed, {"version 9", "uses 2"});
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

TEST_F(CoordinatorTest, RefusesAnIntroductionThatIsIncomplete) {
  Hello hello = NewHello("a", 2);
  hello.job = "";
  ExpectError(Join(hello).key, kInvalid, {"name is empty"});
  hello = NewHello("a", 2);
  hello.incarnation = Incarnation{};
  ExpectError(Join(hello).key, kInvalid, {"incarnation"});
  ExpectError(Join(NewHello("a", 0)).key, kInvalid, {"world_size"});
  ExpectError(Join("a", 2, 2).key, kInvalid, {"rank 2", "2 workers"});
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

TEST_F(CoordinatorTest, RefusesAnotherTokenAndAnotherWorldSize) {
  Join("a", 2);
  Hello hello = NewHello("b", 2);
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
  // A late report that the old stream broke does not affect the new stream.
  coordinator_.LinkBroken(*a.key, a.link.get());
  clock_.Advance(absl::Seconds(20));
  coordinator_.Tick();
  EXPECT_EQ(b.link->Last<Epoch>().number, 1u);
}

TEST_F(CoordinatorTest, AllMembersAreSentOneEpochObject) {
  const Joined a = Join("a", 2, 0), b = Join("b", 2, 1);
  ASSERT_EQ(a.link->Count<Epoch>(), 1u);
  const std::shared_ptr<const Epoch> epoch = a.link->Last<EpochBegun>().epoch;
  EXPECT_EQ(b.link->Last<EpochBegun>().epoch, epoch);
  coordinator_.LinkBroken(*b.key, b.link.get());
  const Joined back = Rejoin(b);
  EXPECT_EQ(back.link->Last<EpochBegun>().epoch, epoch);
  EXPECT_EQ(back.link->Count<Waiting>(), 0u);
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
  coordinator_.Heartbeat(*a.key);
  coordinator_.Heartbeat(*b.key);
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
  // The dropped member gets this error when it comes back.
  ExpectError(Rejoin(c).key, kFailed, {"no longer a member", "rejoin"});
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

// Tests a job that receives heartbeats from none of its workers.
class AbandonedJobTest : public CoordinatorTest {
 protected:
  // No heartbeats arrive and the streams stay open: the workers are paused, or the network is down.
  void FallSilent() {
    clock_.Advance(absl::Seconds(31));
    coordinator_.Tick();
  }
};

TEST_F(AbandonedJobTest, KeepsItsMembersAndRoundsUntilTheyAreBack) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  const auto waiting = Push(a, 1);
  FallSilent();
  EXPECT_THAT(Journal(), HasSubstr("no heartbeat from any worker"));
  clock_.Advance(absl::Minutes(9));
  coordinator_.Tick();
  EXPECT_EQ(a.link->Count<Expelled>() + b.link->Count<Expelled>(), 0u);
  // The first worker to send a heartbeat again does not prove that the other one is dead.
  coordinator_.Heartbeat(*a.key);
  coordinator_.Tick();
  EXPECT_EQ(b.link->Count<Expelled>(), 0u);
  coordinator_.Heartbeat(*b.key);
  clock_.Advance(absl::Seconds(2));
  coordinator_.Heartbeat(*a.key);
  coordinator_.Tick();
  EXPECT_EQ(a.link->Last<Epoch>().number, 1u);
  EXPECT_EQ(waiting->count(), 0u);
  Push(b, 1);
  EXPECT_EQ(waiting->count(), 1u);
}

TEST_F(AbandonedJobTest, TakesAWorkerBackWhoseStreamBroke) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  for (const Joined* lost : {&a, &b}) coordinator_.LinkBroken(*lost->key, lost->link.get());
  FallSilent();
  const Joined again = Rejoin(a);
  ASSERT_THAT(again.key, IsOk());
  EXPECT_EQ(again.link->Last<Epoch>().number, 1u);
  // The other worker gets a new grace period and is dropped when it ends.
  clock_.Advance(absl::Seconds(5));
  coordinator_.Tick();
  EXPECT_EQ(again.link->Last<Epoch>().number, 1u);
  clock_.Advance(absl::Seconds(1));
  coordinator_.Tick();
  EXPECT_THAT(NamesOf(again.link->Last<Epoch>()), ElementsAre("a"));
}

TEST_F(AbandonedJobTest, IsClosedAfterItsTimeToLive) {
  const Joined a = Join("a", 1);
  FallSilent();
  clock_.Advance(absl::Minutes(11));
  coordinator_.Tick();
  EXPECT_EQ(own_.Find("iris"), nullptr);
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  EXPECT_TRUE(own_.all_done());
  ExpectError(a.link->Last<Expelled>().reason, absl::StatusCode::kAborted,
              {"\"iris\"", "came back within 600.0s"});
}

TEST_F(AbandonedJobTest, IsNotWaitedForByAServerThatDrains) {
  const Joined a = Join("a", 1);
  FallSilent();
  coordinator_.Drain();
  clock_.Advance(absl::Seconds(1));
  coordinator_.Tick();
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

TEST_F(AbandonedJobTest, GivesWayToWorkersThatBeginItAnew) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  for (const Joined* lost : {&a, &b}) coordinator_.LinkBroken(*lost->key, lost->link.get());
  // Workers are not admitted under these names as long as their predecessors may come back.
  EXPECT_FALSE(Join("a", 2).key.ok());
  FallSilent();
  Hello hello = NewHello("a", 2);
  hello.token = "guess";
  EXPECT_FALSE(Join(hello).key.ok());
  EXPECT_NE(own_.Find("iris"), nullptr);
  ExpectError(Join("a", 2).key, absl::StatusCode::kUnavailable, {"is being closed"});
  EXPECT_FALSE(own_.all_done());
  coordinator_.Tick();
  const Joined anew = Join("a", 2);
  ASSERT_THAT(anew.key, IsOk());
  EXPECT_EQ(anew.link->generations.back(), Generation{2});
}

TEST_F(CoordinatorTest, DropsNobodyWhileNoOtherMemberIsHeardOf) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  clock_.Advance(absl::Seconds(2));
  coordinator_.Heartbeat(*b.key);
  // The lease of `a` has ended, and no heartbeat of `b` has arrived for 29 seconds: a common cause,
  // such as the network, is more likely than two deaths.
  clock_.Advance(absl::Seconds(29));
  coordinator_.Tick();
  EXPECT_EQ(a.link->Count<Expelled>(), 0u);
  coordinator_.Heartbeat(*b.key);
  coordinator_.Tick();
  EXPECT_EQ(a.link->Count<Expelled>(), 1u);
}

// A coordinator whose process is paused: the clock advances by more than longest_gap between two
// ticks.
class PausedCoordinatorTest : public testing::Test {
 protected:
  PausedCoordinatorTest() { coordinator_.Start(); }

  FakeClock clock_;
  LineJournal journal_;
  Jobs own_{ServerIndex{0}, clock_};
  AppliedCoordinator coordinator_{
      {.longest_gap = absl::Milliseconds(500)}, PlanLog(1, ""), own_, clock_, journal_};
};

TEST_F(PausedCoordinatorTest, DropsNobodyForAPauseOfItsOwn) {
  std::vector<std::shared_ptr<FakeMember>> links;
  std::vector<MemberKey> keys;
  for (uint64_t worker = 0; worker < 2; ++worker) {
    Hello hello;
    hello.protocol_version = kProtocolVersion;
    hello.job = "iris";
    hello.name = "w" + std::to_string(worker);
    hello.incarnation = Incarnation{worker + 1};
    hello.world_size = 2;
    links.push_back(std::make_shared<FakeMember>());
    keys.push_back(*coordinator_.Admit(hello, links.back()));
  }
  for (const absl::Duration pause : {absl::Hours(1), absl::Hours(24), absl::Seconds(31)}) {
    clock_.Advance(pause);
    coordinator_.Tick();
    // Only the first worker sends a heartbeat after the pause.
    coordinator_.Heartbeat(keys[0]);
    coordinator_.Tick();
  }
  EXPECT_EQ(links[0]->Count<Expelled>() + links[1]->Count<Expelled>(), 0u);
  // Leases run down while the coordinator runs.
  for (int tick = 0; tick < 31 * 4; ++tick) {
    clock_.Advance(absl::Milliseconds(250));
    coordinator_.Heartbeat(keys[0]);
    coordinator_.Tick();
  }
  EXPECT_EQ(links[0]->Count<Expelled>(), 0u);
  EXPECT_EQ(links[1]->Count<Expelled>(), 1u);
}

TEST_F(CoordinatorTest, AnEvictedWorkerIsRefusedHoweverItComesBackUntilItIsReadmitted) {
  const Joined a = Join("a", 3, 0), b = Join("b", 3, 1), c = Join("c", 3, 2);
  ASSERT_THAT(coordinator_.Evict("iris", "secret", "b", "its disk fails"), IsOk());
  constexpr auto kAborted = absl::StatusCode::kAborted;
  ExpectError(b.link->Last<Expelled>().reason, kAborted, {"\"b\"", "its disk fails"});
  ExpectError(Rejoin(b).key, kAborted, {"\"b\"", "its disk fails"});
  ExpectError(Join("b", 3).key, kAborted, {"\"b\"", "its disk fails"});
  ExpectError(Join("", 3, 1).key, kAborted, {"\"b\"", "its disk fails"});
  // A server refuses a push of the evicted worker with the same code.
  coordinator_.Register(*a.key, 1, Model());
  ExpectError(Push(b, 1)->error(), kAborted, {"\"b\"", "its disk fails"});

  ExpectError(coordinator_.Readmit("iris", "guess", "b"), absl::StatusCode::kPermissionDenied,
              {"token"});
  ExpectError(coordinator_.Readmit("iris", "secret", "z"), absl::StatusCode::kNotFound, {"\"z\""});
  ASSERT_THAT(coordinator_.Readmit("iris", "secret", "b"), IsOk());
  ExpectError(Join("b", 3).key, absl::StatusCode::kResourceExhausted, {"begun"});
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
  // The job closed when its only worker left, so a new job of the same name may have another size.
  EXPECT_THAT(Join("b", 3).key, IsOk());
}

TEST_F(CoordinatorTest, AWorkerThatLeavesAtTheEndOfItsDataIsADetailInTheLog) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.End(*a.key, 2, GroupId{0}, Round{0}, false);
  coordinator_.Leave(*a.key, 3, {});
  EXPECT_THAT(Journal(), HasSubstr("debug: job \"iris\": worker \"a\" leaves"));
  coordinator_.Leave(*b.key, 1, {});
  EXPECT_THAT(Journal(), HasSubstr("note: job \"iris\": worker \"b\" leaves"));
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
  // A worker of the old generation is refused.
  ExpectError(Rejoin(b).key, kFailed, {"generation 1", "2", "rejoin"});
}

TEST_F(CoordinatorTest, OnlyTheLastOfSeveralJobsEndsEverything) {
  const Joined a = Join("a", 1);
  Hello hello = NewHello("a", 1);
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
  Hello hello = NewHello("a", 1);
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
  const MemberKey stranger{"iris", Generation{1}, MemberId{5}};
  coordinator_.Heartbeat(stranger);
  coordinator_.Register(stranger, 1, Model());
  coordinator_.End(stranger, 1, GroupId{0}, Round{0}, true);
  coordinator_.Leave(stranger, 1, {});
  coordinator_.LinkBroken(stranger, nullptr);
  coordinator_.Refuse(stranger, 1, absl::InternalError(""));
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
}

// A member that notes whether the closing was stored when it was informed that its job is over.
class Witness : public FakeMember {
 public:
  explicit Witness(const KeptRecords& store) : store_(store) {}
  void Send(Generation generation, const JobSignal::Kind& signal) override {
    if (std::holds_alternative<Expelled>(signal)) closing_was_stored = store_.HasClosing();
    FakeMember::Send(generation, signal);
  }
  std::optional<bool> closing_was_stored;

 private:
  const KeptRecords& store_;
};

TEST_F(CoordinatorTest, ThatAJobIsClosedIsStoredBeforeAMemberHearsOfIt) {
  KeptRecords store;
  coordinator_.Restore(store, {}, {});
  const auto witness = std::make_shared<Witness>(store);
  ASSERT_THAT(coordinator_.Admit(NewHello("a", 1), witness), IsOk());
  coordinator_.CloseAll("the test says so");
  EXPECT_EQ(witness->closing_was_stored, true);
}

TEST_F(CoordinatorTest, AFullStoreEndsTheJobThatWritesAndNoOther) {
  KeptRecords store;
  coordinator_.Restore(store, {}, {});
  const Joined a = Join("a", 1);
  Hello hello = NewHello("b", 1);
  hello.job = "mnist";
  const Joined b = Join(hello);
  store.full = true;
  coordinator_.Register(*a.key, 1, Model());
  EXPECT_EQ(a.link->Count<Registered>(), 0u);
  hello = NewHello("c", 1);
  hello.job = "digits";
  ExpectError(Join(hello).key, absl::StatusCode::kResourceExhausted, {"the disk is full"});
  coordinator_.Tick();
  ExpectError(a.link->Last<Expelled>().reason, absl::StatusCode::kResourceExhausted,
              {"\"iris\"", "the disk is full"});
  EXPECT_EQ(own_.Find("iris"), nullptr);
  EXPECT_THAT(coordinator_.status(), IsOk());

  store.full = false;
  coordinator_.Register(*b.key, 1, Model());
  EXPECT_EQ(b.link->Count<Registered>(), 1u);
  EXPECT_THAT(Join("a", 1).key, IsOk());
}

// Groups so large that their memory is allocated before they are registered.
class LargeGroupTest : public TwoServersTest {
 protected:
  LargeGroupTest() {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      members_.push_back(Join("w" + std::to_string(rank), 2, rank));
    }
    other_->Apply(coordinator_);
    own_.prepared().SetSink([this](const GroupPrepared& prepared) {
      MutexLock lock(mutex_);
      own_states_.push_back(prepared);
      changed_.NotifyAll();
    });
  }
  ~LargeGroupTest() override { own_.prepared().SetSink(nullptr); }

  static GroupSpec Large(const std::string& name = "model") {
    return {name, {{"t", DType::kF32, {int64_t{3} << 20}}}, Reduction::kSum, 0};
  }
  // Forwards the reports of server 0 to the coordinator until the allocation is done.
  void OwnIsDone() {
    bool done = false;
    while (!done) {
      std::vector<GroupPrepared> states;
      {
        MutexLock lock(mutex_);
        while (own_states_.empty()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
        states.swap(own_states_);
      }
      for (const GroupPrepared& state : states) {
        coordinator_.Prepared(ServerIndex{0}, state);
        done = done || state.done;
      }
    }
  }
  GroupPrepared StateOf(const GroupPreparation& asked, bool done,
                        absl::Status error = absl::OkStatus()) {
    return {asked.job, asked.generation, asked.key, uint64_t{2} << 20, uint64_t{6} << 20,
            done,      std::move(error)};
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<GroupPrepared> own_states_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(LargeGroupTest, IsRegisteredOnceEveryServerHasItsMemory) {
  for (const Joined& member : members_) coordinator_.Register(*member.key, 1, Large());
  ASSERT_EQ(other_->asked.size(), 1u);
  OwnIsDone();
  EXPECT_THAT(other_->waiting, testing::IsEmpty());
  // The workers are informed of the progress.
  coordinator_.Prepared(ServerIndex{1}, StateOf(other_->asked[0], false));
  clock_.Advance(absl::Seconds(1));
  coordinator_.Tick();
  for (const Joined& member : members_) {
    EXPECT_THAT(member.link->Last<Waiting>().reason,
                HasSubstr("server 1 has allocated 2 of 6 MiB"));
  }
  // The job's other groups are registered after the large one. Heartbeats are not blocked.
  GroupSpec small = Model();
  small.name = "small";
  coordinator_.Register(*members_[0].key, 2, small);
  EXPECT_EQ(members_[0].link->Count<Registered>(), 0u);
  coordinator_.Prepared(ServerIndex{1}, StateOf(other_->asked[0], true));
  OwnIsDone();
  other_->Apply(coordinator_);
  EXPECT_EQ(members_[0].link->Count<Registered>(), 2u);
  EXPECT_EQ(members_[1].link->Last<Registered>().request, 1u);
}

TEST_F(LargeGroupTest, IsAskedForAgainOfAServerThatConnectsAgain) {
  coordinator_.Register(*members_[0].key, 1, Large());
  coordinator_.DetachServer(ServerIndex{1}, other_.get());
  EXPECT_THAT(coordinator_.AttachServer(other_->identity, other_), IsOk());
  ASSERT_EQ(other_->asked.size(), 2u);
  EXPECT_EQ(other_->asked[0].key, other_->asked[1].key);
}

TEST_F(LargeGroupTest, IsRefusedAndFreedIfOneServerHasNoRoom) {
  coordinator_.Register(*members_[0].key, 1, Large());
  OwnIsDone();
  coordinator_.Prepared(ServerIndex{1},
                        StateOf(other_->asked[0], true, absl::ResourceExhaustedError("no room")));
  ExpectError(members_[0].link->Last<Refused>().error, absl::StatusCode::kResourceExhausted,
              {"\"model\"", "server 1", "no room"});
  ASSERT_EQ(other_->asked.size(), 2u);
  EXPECT_EQ(other_->asked[1].plan, nullptr);
  // A smaller group of the same name can be registered afterwards.
  coordinator_.Register(*members_[0].key, 2, Model());
  OwnIsDone();
  other_->Apply(coordinator_);
  EXPECT_EQ(members_[0].link->Last<Registered>().request, 2u);
}

}  // namespace
}  // namespace syncgrads::server
