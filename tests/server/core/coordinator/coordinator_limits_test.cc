// Limits on the harm that one member can do to the other members of its job, or to the server.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/plan_log/compact_plan.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr Round kFarAway{uint64_t{1} << 60};

class CoordinatorLimitsTest : public CoordinatorTest {
 protected:
  static GroupRound In(uint32_t group, Round round) { return {GroupId{group}, round}; }
  absl::Status Admission(const Hello& hello) { return Join(hello).key.status(); }
};

TEST_F(CoordinatorLimitsTest, NamesAreShortAndPrintable) {
  Hello hello = NewHello("a", 2);
  hello.job = std::string(256, 'j');
  ExpectError(Admission(hello), kInvalid, {"the job's name", "256 bytes", "255"});
  hello = NewHello("evil\nnote: all is well", 2);
  ExpectError(Admission(hello), kInvalid, {"the worker's name", "evil\\x0anote"});
  hello = NewHello("a", 2);
  hello.host = "\x1b]0;title\x07";
  ExpectError(Admission(hello), kInvalid, {"the worker's host", "\\x1b]0"});
  hello = NewHello("a", 2);
  hello.token = std::string(1025, 't');
  ExpectError(Admission(hello), kInvalid, {"token", "1025 bytes", "1024"});
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  hello = NewHello("a", 2);
  hello.name = std::string(255, 'w');
  EXPECT_THAT(Admission(hello), IsOk());
}

TEST_F(CoordinatorLimitsTest, AGroupsNameIsShortAndPrintable) {
  const Joined a = Join("a", 1);
  GroupSpec spec = Model();
  spec.name = std::string(256, 'g');
  coordinator_.Register(*a.key, 1, spec);
  ExpectError(a.link->Last<Refused>().error, kInvalid, {"name of a group", "256 bytes", "255"});
  spec.name = "g\n";
  coordinator_.Register(*a.key, 2, spec);
  ExpectError(a.link->Last<Refused>().error, kInvalid, {"g\\x0a"});
  EXPECT_THAT(Journal(), Not(HasSubstr("group 0")));
}

TEST_F(CoordinatorLimitsTest, WhatIsReportedOfACheckpointIsEscapedAndCut) {
  const Joined a = Join("a", 1);
  coordinator_.Checkpointed(*a.key, {7, "/c/\nnote: forged \x1b[2J" + std::string(1 << 20, 'p')});
  const std::string path = coordinator_.Report("iris").checkpoints.last_path;
  EXPECT_THAT(path, HasSubstr("/c/\\x0anote: forged \\x1b[2J"));
  EXPECT_LT(path.size(), 5000u);
  coordinator_.Checkpointed(*a.key, {8, absl::InternalError("disk\nfull")});
  EXPECT_EQ(coordinator_.Report("iris").checkpoints.last_error, "disk\\x0afull");
  for (const std::string& line : journal_.lines()) {
    EXPECT_THAT(line, Not(HasSubstr("\n")));
    EXPECT_LT(line.size(), 5000u);
  }
}

TEST_F(CoordinatorLimitsTest, PathsAreDetailsOfEvents) {
  const Joined a = Join("a", 1);
  coordinator_.Checkpointed(*a.key, {7, "/c/7"});
  coordinator_.Checkpointed(*a.key, {8, absl::InternalError("no space in /c")});
  coordinator_.StoreFailed(ServerIndex{0},
                           {"iris", Generation{1}, absl::ResourceExhaustedError("no space in /c")});
  coordinator_.Tick();
  size_t details = 0;
  for (const Event& event : journal_.events()) {
    EXPECT_THAT(event.text, Not(HasSubstr("/c"))) << ToString(event.kind);
    details += event.detail.find("/c") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(details, 3u);
  EXPECT_THAT(Journal(), HasSubstr("could not write the checkpoint after step 8: no space in /c"));
}

TEST_F(CoordinatorLimitsTest, ALeaveDoesNotHoldTheOthersUpWhateverRoundItClaims) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.Leave(*a.key, 2, {In(0, kFarAway)});
  EXPECT_EQ(a.link->Count<Farewell>(), 1u);
  const auto waits = Push(b, 1);
  clock_.Advance(absl::Seconds(29));
  coordinator_.Heartbeat(*b.key);
  coordinator_.Tick();
  EXPECT_EQ(waits->count(), 0u) << "what a contributed may still be on its way";
  clock_.Advance(absl::Seconds(1));
  coordinator_.Tick();
  ASSERT_EQ(waits->count(), 1u);
  EXPECT_THAT(waits->error(), IsOk());
  EXPECT_THAT(Push(b, 2)->error(), IsOk());
  // A later push of the departed member is refused.
  ExpectError(Push(a, 3)->error(), kFailed, {"\"a\"", "no longer a member"});
}

TEST_F(CoordinatorLimitsTest, WhatAMemberThatLeftHadContributedCountsLater) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  Push(a, 1);
  coordinator_.Leave(*a.key, 2, {In(0, Round{1})});
  clock_.Advance(absl::Seconds(30));
  coordinator_.Heartbeat(*b.key);
  coordinator_.Tick();
  const auto sum = Push(b, 1);
  ASSERT_EQ(sum->count(), 1u);
  EXPECT_THAT(sum->last().header.contributors, ElementsAre(0, 1));
  EXPECT_THAT(sum->last().header.counts, ElementsAre(2));
}

TEST_F(CoordinatorLimitsTest, ALeaveNamesAtMostAsManyGroupsAsThereAre) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.Leave(*a.key, 2, {In(0, Round{1}), In(1, Round{1})});
  ExpectError(a.link->Last<Refused>().error, kInvalid, {"2 last rounds", "\"iris\" has 1 groups"});
  coordinator_.Leave(*a.key, 3, {In(0, Round{1})});
  EXPECT_EQ(a.link->Last<Farewell>().request, 3u);
}

TEST_F(CoordinatorLimitsTest, AnEndIsStoredOnce) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.End(*a.key, 2, GroupId{0}, Round{5}, true);
  const uint64_t applied = own_.applied();
  for (uint64_t request = 3; request < 1000; ++request) {
    coordinator_.End(*a.key, request, GroupId{0}, Round{5}, true);
    ASSERT_EQ(a.link->Last<Done>().request, request);
  }
  EXPECT_EQ(own_.applied(), applied);
  coordinator_.End(*a.key, 1000, GroupId{0}, Round{6}, true);
  ExpectError(a.link->Last<Refused>().error, kFailed,
              {"after round 6", "has already ended it after 5"});
}

TEST_F(CoordinatorLimitsTest, AJobHasAsManyGroupsAsItMay) {
  const Joined a = Join("a", 1);
  for (uint32_t i = 0; i < 1024; ++i) {
    coordinator_.Register(*a.key, 1 + i, {absl::StrCat("loss/", i), Model().tensors});
  }
  ASSERT_EQ(a.link->Count<Registered>(), 1024u);
  coordinator_.Register(*a.key, 2000, {"loss/1024", Model().tensors});
  ExpectError(a.link->Last<Refused>().error, kExhausted, {"\"loss/1024\"", "1024 (max_groups)"});
  coordinator_.Register(*a.key, 2001, {"loss/7", Model().tensors});
  EXPECT_EQ(a.link->Last<Registered>().request, 2001u);
}

TEST_F(CoordinatorLimitsTest, ALateMessageOfAClosedJobDoesNothingInTheNextJobOfItsName) {
  GroupSpec spec = Model();
  spec.members_scale_rate = true;
  const Joined a = Join("a", 1);
  coordinator_.Register(*a.key, 1, spec);
  ASSERT_THAT(coordinator_.Evict("iris", "secret", "a", "by itself"), IsOk());
  ASSERT_EQ(coordinator_.open_jobs(), 0u);
  Hello hello = NewHello("b", 1);
  hello.token = "another";
  const Joined b = Join(hello);
  ASSERT_THAT(b.key, IsOk());
  ASSERT_EQ(b.key->member, a.key->member) << "members of each job are numbered from 0";
  coordinator_.Register(*b.key, 1, spec);
  ASSERT_EQ(b.link->Count<Registered>(), 1u);
  const size_t before = b.link->signals.size();

  coordinator_.SetLearningRate(*a.key, 2, 0.5);
  EXPECT_EQ(b.link->Last<Epoch>().learning_rate.factor, 1);
  GroupSpec other = spec;
  other.name = "other";
  coordinator_.Register(*a.key, 3, other);
  coordinator_.Refuse(*a.key, 4, absl::InternalError("late"));
  coordinator_.Ready(*a.key, 5, GroupId{0});
  coordinator_.End(*a.key, 6, GroupId{0}, Round{5}, true);
  coordinator_.Checkpointed(*a.key, {7, "/c/7"});
  EXPECT_EQ(coordinator_.Report("iris").checkpoints.last_path, "");
  coordinator_.Leave(*a.key, 7, {});
  coordinator_.LinkBroken(*a.key, b.link.get());
  EXPECT_EQ(b.link->signals.size(), before);
  EXPECT_THAT(Journal(), Not(HasSubstr("\"b\" leaves")));
  EXPECT_THAT(Journal(), Not(HasSubstr("stream of worker \"b\" broke")));
  ASSERT_EQ(coordinator_.open_jobs(), 1u);
  EXPECT_THAT(Push(b, 1)->error(), IsOk());
}

TEST_F(CoordinatorLimitsTest, AJobRemembersAsManyEvictedWorkersAsItMay) {
  const Joined stays = Join("stays", 3);
  for (int i = 0; i < 3000; ++i) {
    const std::string name = absl::StrCat("w", i);
    const Joined worker = Join(name, 3);
    ASSERT_THAT(worker.key, IsOk());
    const absl::Status evicted = coordinator_.Evict("iris", "secret", name, std::string(2000, 'r'));
    if (i < 1024) {
      ASSERT_THAT(evicted, IsOk());
      continue;
    }
    ExpectError(evicted, kExhausted,
                {"\"iris\" has 1024 evicted workers, of at most 1024", "readmit some"});
    ASSERT_EQ(worker.link->Count<Expelled>(), 0u);
    coordinator_.Leave(*worker.key, 1, {});
  }
  ASSERT_THAT(coordinator_.Readmit("iris", "secret", "w7"), IsOk());
  ASSERT_THAT(Join("w7", 3).key, IsOk());
  EXPECT_THAT(coordinator_.Evict("iris", "secret", "w7", ""), IsOk());
}

// Workers that join, are evicted and are readmitted again and again.
class ReadmissionLimitsTest : public CoordinatorLimitsTest {
 protected:
  ReadmissionLimitsTest() { coordinator_.Restore(store_, {}, {}); }

  void EvictAndReadmit(int times, const Hello& like) {
    for (int i = 0; i < times; ++i) {
      Hello hello = NewHello(absl::StrCat("w", i % 3), like.world_size);
      hello.max_workers = like.max_workers;
      ASSERT_THAT(Join(hello).key, IsOk());
      ASSERT_THAT(coordinator_.Evict("iris", "secret", hello.name, std::string(2000, 'r')), IsOk());
      ASSERT_THAT(coordinator_.Readmit("iris", "secret", hello.name), IsOk());
    }
  }
  // The number of records that remain of the plan of the coordinator or of another server.
  size_t Left(bool coordinator) const {
    std::vector<Stored> records = store_.records;
    if (!coordinator) {
      std::erase_if(records,
                    [](const Stored& one) { return !std::holds_alternative<PlanChange>(one); });
    }
    PlanStart start;
    CompactPlan(start, records, {});
    return records.size();
  }

  KeptRecords store_;
};

TEST_F(ReadmissionLimitsTest, LittleIsLeftOfThemBeforeTheJobBegins) {
  const Joined stays = Join("stays", 3);
  EvictAndReadmit(3000, stays.hello);
  EXPECT_LT(Left(/*coordinator=*/true), 10u);
  EXPECT_LT(Left(/*coordinator=*/false), 10u);
}

TEST_F(ReadmissionLimitsTest, LittleIsLeftOfNewcomers) {
  Hello elastic = NewHello("stays", 1);
  elastic.max_workers = 3;
  const Joined stays = Join(elastic);
  ASSERT_EQ(stays.link->Count<Epoch>(), 1u);
  EvictAndReadmit(3000, elastic);
  EXPECT_LT(Left(/*coordinator=*/true), 10u);
  EXPECT_LT(Left(/*coordinator=*/false), 10u);
  EXPECT_LT(coordinator_.Report("iris").members.size(), 10u);
}

// The workers of a job that waits for 2,000 of them.
class WaitingLimitsTest : public CoordinatorLimitsTest {
 protected:
  static std::string NameOf(uint32_t i) { return absl::StrCat(1000 + i, std::string(243, 'w')); }
  void JoinMany(uint32_t workers) {
    for (uint32_t i = 0; i < workers; ++i) {
      joined_.push_back(Join(NameOf(static_cast<uint32_t>(joined_.size())), 2000));
      ASSERT_THAT(joined_.back().key, IsOk());
    }
  }
  size_t BytesSent() const {
    size_t bytes = 0;
    for (const Joined& one : joined_) {
      for (const Waiting& waiting : one.link->All<Waiting>()) bytes += waiting.reason.size();
    }
    return bytes;
  }
  // Lets a second pass in which all workers send heartbeats.
  void PassASecond() {
    clock_.Advance(absl::Seconds(1));
    for (const Joined& one : joined_) coordinator_.Heartbeat(*one.key);
    coordinator_.Tick();
  }

  std::vector<Joined> joined_;
};

TEST_F(WaitingLimitsTest, WhatIsSentGrowsWithTheNumberOfWorkers) {
  JoinMany(400);
  EXPECT_LE(BytesSent(), 400 * 2400u);
  EXPECT_EQ(joined_[2].link->Last<Waiting>().reason,
            absl::StrCat("3 of 2000 workers have joined: \"", NameOf(0), "\", \"", NameOf(1),
                         "\", \"", NameOf(2), "\""));
  EXPECT_THAT(
      joined_[399].link->Last<Waiting>().reason,
      testing::AllOf(HasSubstr("400 of 2000 workers have joined: \"1000ww"), HasSubstr("\"1007ww"),
                     Not(HasSubstr("\"1008ww")), testing::EndsWith(" and 392 more")));
}

TEST_F(WaitingLimitsTest, TheOthersAreSentTheNewReasonOnceASecond) {
  JoinMany(100);
  PassASecond();
  for (const Joined& one : joined_) {
    EXPECT_THAT(one.link->Last<Waiting>().reason, HasSubstr("100 of 2000"));
    EXPECT_LE(one.link->Count<Waiting>(), 2u);
  }
  JoinMany(1);
  coordinator_.Tick();
  EXPECT_THAT(joined_[0].link->Last<Waiting>().reason, HasSubstr("100 of 2000"));
  PassASecond();
  EXPECT_THAT(joined_[0].link->Last<Waiting>().reason, HasSubstr("101 of 2000"));
  const size_t sent = BytesSent();
  PassASecond();
  EXPECT_EQ(BytesSent(), sent) << "the reason is the same";
}

TEST_F(WaitingLimitsTest, AWorkerThatDoesNotReadIsSentTheReasonWhenItHasRead) {
  JoinMany(2);
  joined_[0].link->unread = true;
  for (int i = 0; i < 10; ++i) {
    PassASecond();
    JoinMany(1);
  }
  EXPECT_EQ(joined_[0].link->Count<Waiting>(), 1u);
  joined_[0].link->unread = false;
  PassASecond();
  EXPECT_EQ(joined_[0].link->Count<Waiting>(), 2u);
  EXPECT_THAT(joined_[0].link->Last<Waiting>().reason, HasSubstr("12 of 2000"));
}

TEST_F(WaitingLimitsTest, NewcomersAreSentTheReasonOnceToo) {
  const auto join = [this](const std::string& name) {
    Hello hello = NewHello(name, 1);
    hello.max_workers = 1000;
    joined_.push_back(Join(hello));
    ASSERT_THAT(joined_.back().key, IsOk());
  };
  for (int i = 0; i < 100; ++i) join(absl::StrCat("w", i));
  PassASecond();
  EXPECT_EQ(joined_[0].link->Count<Waiting>(), 0u) << "it is in the epoch";
  for (size_t i = 1; i < joined_.size(); ++i) {
    EXPECT_EQ(joined_[i].link->Count<Waiting>(), 1u);
    EXPECT_THAT(joined_[i].link->Last<Waiting>().reason,
                HasSubstr("\"iris\" is running: worker \"w0\" has not reported"));
  }
}

// At most three jobs may be open.
class JobLimitsTest : public CoordinatorTest {
 protected:
  JobLimitsTest() : CoordinatorTest(1, ThreeJobs()) {}

  static CoordinatorOptions ThreeJobs() {
    CoordinatorOptions options = Options();
    options.max_jobs = 3;
    return options;
  }
  Joined JoinJob(const std::string& job, uint32_t world_size = 1) {
    Hello hello = NewHello("w", world_size);
    hello.job = job;
    return Join(hello);
  }
  // Breaks the stream of the job's only worker, and waits until the job is abandoned.
  void Abandon(const Joined& worker) {
    coordinator_.LinkBroken(*worker.key, worker.link.get());
    clock_.Advance(absl::Seconds(6));
    coordinator_.Tick();
    clock_.Advance(absl::Seconds(1));
  }
};

TEST_F(JobLimitsTest, AsManyJobsAreOpenAsMayBe) {
  const Joined a = JoinJob("a"), b = JoinJob("b"), waits = JoinJob("c", 2);
  ExpectError(JoinJob("d").key, kExhausted, {"3 jobs are open", "at most 3 (max_jobs)"});
  EXPECT_THAT(Rejoin(a).key, IsOk());
  Hello second = NewHello("second", 2);
  second.job = "c";
  EXPECT_THAT(Join(second).key, IsOk());
  coordinator_.Leave(*b.key, 1, {});
  EXPECT_THAT(JoinJob("d").key, IsOk());
  ExpectError(JoinJob("b").key, kExhausted, {"3 jobs"});
}

TEST_F(JobLimitsTest, AJobThatWasAbandonedBeforeItsFirstStepMakesRoom) {
  const Joined trained = JoinJob("iris");
  coordinator_.Register(*trained.key, 1, Model());
  ASSERT_THAT(Push(trained, 1)->error(), IsOk());
  Abandon(trained);
  Abandon(JoinJob("a"));
  const Joined b = JoinJob("b");
  coordinator_.Register(*b.key, 1, Model());
  Abandon(b);
  EXPECT_THAT(Journal(), Not(HasSubstr("is closed")));
  EXPECT_THAT(JoinJob("c").key, IsOk());
  EXPECT_THAT(Journal(), HasSubstr("job \"a\" is closed: it was abandoned before its first step, "
                                   "and 3 jobs are open, of at most 3 (max_jobs)"));
  EXPECT_THAT(Journal(), Not(HasSubstr("job \"b\" is closed")));
  EXPECT_THAT(JoinJob("d").key, IsOk());
  EXPECT_THAT(Journal(), HasSubstr("job \"b\" is closed"));
  ExpectError(JoinJob("e").key, kExhausted, {"3 jobs"});
  EXPECT_THAT(Rejoin(trained).key, IsOk());
}

// A job may have at most four workers.
class WorkerLimitsTest : public CoordinatorTest {
 protected:
  WorkerLimitsTest() : CoordinatorTest(1, FourWorkers()) {}

  static CoordinatorOptions FourWorkers() {
    CoordinatorOptions options = Options();
    options.max_workers = 4;
    return options;
  }
};

TEST_F(WorkerLimitsTest, AJobForMoreWorkersIsRefusedWithBothNumbers) {
  ExpectError(Join("a", 5).key, kExhausted,
              {"job \"iris\" is for 5 workers", "at most 4 (--max_workers)"});
  Hello elastic = NewHello("a", 2);
  elastic.max_workers = 6;
  ExpectError(Join(elastic).key, kExhausted, {"6 workers", "at most 4"});
  EXPECT_EQ(coordinator_.open_jobs(), 0u);
  EXPECT_THAT(Join("a", 4).key, IsOk());
}

class ElasticLimitsTest : public CoordinatorLimitsTest {
 protected:
  Joined JoinElastic(const std::string& name) {
    Hello hello = NewHello(name, 2);
    hello.max_workers = 3;
    hello.step_timeout = absl::Seconds(10);
    return Join(hello);
  }
};

TEST_F(ElasticLimitsTest, AStateIsInAGroupThatThereIs) {
  const Joined a = JoinElastic("a"), b = JoinElastic("b");
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.Ready(*a.key, 2, GroupId{77});
  ExpectError(a.link->Last<Refused>().error, kInvalid, {"\"a\"", "group 77", "has 1 groups"});
  coordinator_.Ready(*b.key, 3, GroupId{0});
  EXPECT_EQ(b.link->Last<Done>().request, 3u);
}

TEST_F(ElasticLimitsTest, NobodyIsBehindAStepThatIsNotOpen) {
  const Joined a = JoinElastic("a"), liar = JoinElastic("liar");
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.Ready(*a.key, 2, GroupId{0});
  coordinator_.Ready(*liar.key, 2, GroupId{0});
  Push(a, 1);
  for (int i = 0; i < 20; ++i) {
    coordinator_.Heartbeat(*a.key, {{In(0, Round{1})}});
    coordinator_.Heartbeat(*liar.key, {{In(0, kFarAway)}});
    coordinator_.Tick();
    clock_.Advance(absl::Seconds(4));
  }
  EXPECT_EQ(a.link->Count<Expelled>(), 0u);
}

TEST_F(ElasticLimitsTest, AListOfMoreRoundsThanGroupsIsIgnored) {
  const Joined a = JoinElastic("a"), b = JoinElastic("b");
  coordinator_.Register(*a.key, 1, Model());
  for (const Joined* one : {&a, &b}) coordinator_.Ready(*one->key, 2, GroupId{0});
  Push(a, 1);
  Push(b, 1);
  coordinator_.Heartbeat(*a.key, {std::vector<GroupRound>(1000, In(0, Round{2}))});
  coordinator_.Heartbeat(*b.key, {{In(0, Round{1})}});
  for (int i = 0; i < 4; ++i) {
    coordinator_.Tick();
    clock_.Advance(absl::Seconds(4));
  }
  EXPECT_EQ(b.link->Count<Expelled>(), 0u);
}

}  // namespace
}  // namespace syncgrads::server
