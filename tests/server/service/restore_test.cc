// A coordinator that dies and is restored from its stored plan.

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/signals/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/coordinator/coordinator.h"
#include "server/service/control/plan_store.h"
#include "server/state/state_directory.h"
#include "tests/common/expect_error.h"
#include "tests/server/core/coordinator/applied_coordinator.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using MemberKey = Coordinator::MemberKey;

class RecordingMember : public MemberLink {
 public:
  void Send(Generation generation, const JobSignal::Kind& signal) override {
    generations.push_back(generation);
    signals.push_back(signal);
  }
  // Returns the newest signal of the kind `Kind`; null if there is none.
  template <typename Kind>
  const Kind* Last() const {
    for (auto signal = signals.rbegin(); signal != signals.rend(); ++signal) {
      if (const auto* found = std::get_if<Kind>(&*signal)) return found;
    }
    return nullptr;
  }

  std::vector<Generation> generations;
  std::vector<JobSignal::Kind> signals;
};

Hello NewHello(uint64_t incarnation, uint32_t rank) {
  Hello hello;
  hello.protocol_version = kProtocolVersion;
  hello.job = "iris";
  hello.token = "secret";
  hello.incarnation = Incarnation{incarnation};
  hello.rank = rank;
  hello.world_size = 2;
  hello.host = "host";
  return hello;
}

GroupSpec Model() { return {"model", {{"kernel", DType::kF32, {4}}}, Reduction::kSum, 0}; }

// The process of the only server, from its start to a crash: its destructor does no orderly
// shutdown.
class Incarnate {
 public:
  Incarnate(const std::string& path, FakeClock& clock, PlanStoreOptions options)
      : directory_(*StateDirectory::Own(path)), jobs_(ServerIndex{0}, clock) {
    options.oldest_epochs = [this] { return jobs_.OldestEpochs(); };
    options.run = [](const std::function<void()>& closure) { closure(); };
    StoredPlan plan;
    plan.start.plan = 77;
    auto store = PlanStore::Open(directory_->plan_path(), plan, options);
    if (absl::IsNotFound(store.status())) {
      store = PlanStore::Create(directory_->plan_path(), plan.start, options);
    }
    status_ = store.status();
    if (!status_.ok()) return;
    store_ = *std::move(store);
    std::vector<PlanChange> changes;
    for (const Stored& record : plan.records) {
      if (const auto* change = std::get_if<PlanChange>(&record)) changes.push_back(*change);
    }
    const auto held = jobs_.Restore({directory_.get(), nullptr}, plan.start, changes);
    status_ = held.status();
    if (!status_.ok()) return;
    coordinator_ = std::make_unique<AppliedCoordinator>(
        CoordinatorOptions{.longest_gap = absl::InfiniteDuration()},
        PlanLog(1, "", plan.start.plan), jobs_, clock, journal_);
    coordinator_->Restore(*store_, plan.start, plan.records);
    coordinator_->Start(*held);
  }

  const absl::Status& status() const { return status_; }
  AppliedCoordinator& operator*() { return *coordinator_; }
  AppliedCoordinator* operator->() { return coordinator_.get(); }
  Jobs& jobs() { return jobs_; }
  Store& store() { return *store_; }

 private:
  LineJournal journal_;
  std::unique_ptr<StateDirectory> directory_;
  std::unique_ptr<PlanStore> store_;
  Jobs jobs_;
  absl::Status status_;
  std::unique_ptr<AppliedCoordinator> coordinator_;
};

// The parameter selects whether the log is compacted after every record. The results must not
// depend on it.
class RestoreTest : public ::testing::TestWithParam<bool> {
 protected:
  RestoreTest() { std::filesystem::remove_all(path_); }
  ~RestoreTest() override { std::filesystem::remove_all(path_); }

  struct Joined {
    std::shared_ptr<RecordingMember> link = std::make_shared<RecordingMember>();
    absl::StatusOr<MemberKey> key;
  };
  static Joined Join(Incarnate& server, Hello hello, uint64_t generation = 0) {
    hello.generation = Generation{generation};
    Joined joined;
    joined.key = server->Admit(hello, joined.link);
    return joined;
  }

  // Runs thousands of steps, and one more after a restart; the log must stay bounded. `start` joins
  // the workers; if the generation is 0, it also registers the group. `take` runs one step and
  // returns the number of answers to it.
  void ExpectTheLogDoesNotGrow(
      const std::function<void(Incarnate& server, uint64_t generation)>& start,
      const std::function<size_t(Incarnate& server, uint64_t step)>& take) {
    const uint64_t steps = GetParam() ? 500 : 10000;
    const auto bytes = [this] { return std::filesystem::file_size(path_ + "/plan"); };
    uintmax_t most = 0;
    {
      Incarnate server(path_, clock_, options_);
      start(server, 0);
      const uintmax_t before = bytes();
      for (uint64_t step = 1; step <= steps; ++step) {
        ASSERT_EQ(take(server, step), 1u) << step;
        if (step == 100) most = before + 50 * (bytes() - before);
      }
      EXPECT_LT(bytes(), most);
    }
    Incarnate server(path_, clock_, options_);
    ASSERT_THAT(server.status(), IsOk());
    start(server, 1);
    EXPECT_EQ(take(server, steps + 1), 1u);
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/restore_test");
  const PlanStoreOptions options_ =
      GetParam() ? PlanStoreOptions{.growth = 0, .slack = 0} : PlanStoreOptions();
  FakeClock clock_;
};

class RestoreNames {
 public:
  std::string operator()(const ::testing::TestParamInfo<bool>& info) const {
    return info.param ? "OfACompactedLog" : "OfAWholeLog";
  }
};
INSTANTIATE_TEST_SUITE_P(Each, RestoreTest, ::testing::Bool(), RestoreNames());

TEST_P(RestoreTest, AnEvictionBeforeTheFirstEpochIsRemembered) {
  const auto hello = [](uint64_t incarnation, uint32_t rank) {
    Hello hello = NewHello(incarnation, rank);
    hello.world_size = 3;
    return hello;
  };
  {
    Incarnate server(path_, clock_, options_);
    Join(server, hello(7, 0));
    Join(server, hello(8, 1));
    ASSERT_THAT(server->Evict("iris", "secret", "worker-1", "its disk fails"), IsOk());
    Join(server, hello(9, 2));
  }
  Incarnate server(path_, clock_, options_);
  ASSERT_THAT(server.status(), IsOk());
  ExpectError(Join(server, hello(10, 1)).key, absl::StatusCode::kAborted, {"its disk fails"});
  ASSERT_THAT(server->Readmit("iris", "secret", "worker-1"), IsOk());
  EXPECT_THAT(Join(server, hello(10, 1)).key, IsOk());
}

TEST_P(RestoreTest, AReadmissionIsRememberedAndSoIsAnEvictionAfterIt) {
  const auto hello = [](uint64_t incarnation, uint32_t rank) {
    Hello hello = NewHello(incarnation, rank);
    hello.world_size = 4;
    return hello;
  };
  {
    Incarnate server(path_, clock_, options_);
    const auto evict = [&](uint64_t incarnation, uint32_t rank) {
      ASSERT_THAT(Join(server, hello(incarnation, rank)).key, IsOk());
      ASSERT_THAT(server->Evict("iris", "secret", absl::StrCat("worker-", rank), "slow"), IsOk());
    };
    const auto readmit = [&](uint32_t rank) {
      ASSERT_THAT(server->Readmit("iris", "secret", absl::StrCat("worker-", rank)), IsOk());
    };
    Join(server, hello(7, 0));
    for (const uint64_t incarnation : {8, 9}) {
      evict(incarnation, 1);
      readmit(1);
    }
    evict(10, 2);
    readmit(2);
    evict(11, 2);
    Join(server, hello(12, 3));
  }
  Incarnate server(path_, clock_, options_);
  ASSERT_THAT(server.status(), IsOk());
  EXPECT_THAT(Join(server, hello(13, 1)).key, IsOk());
  ExpectError(Join(server, hello(14, 2)).key, absl::StatusCode::kAborted, {"slow"});
}

TEST_P(RestoreTest, MembersComeBackAsWhoTheyWereWithAWholeLease) {
  Epoch epoch;
  {
    Incarnate server(path_, clock_, options_);
    Join(server, NewHello(10, 1));
    const Joined one = Join(server, NewHello(11, 0));
    epoch = *one.link->Last<EpochBegun>()->epoch;
  }
  clock_.Advance(absl::Hours(1));
  Incarnate server(path_, clock_, options_);
  server->Tick();
  const Joined back = Join(server, NewHello(10, 1), 1);
  ASSERT_THAT(back.key, IsOk());
  EXPECT_EQ(back.key->member, MemberId{0});
  EXPECT_EQ(*back.link->Last<EpochBegun>()->epoch, epoch);
  EXPECT_EQ(back.link->Last<Welcome>()->name, "worker-1");
  clock_.Advance(absl::Seconds(29));
  server->Tick();
  EXPECT_EQ(server.jobs().Find("iris")->epoch()->number, 1u);
  server->Heartbeat(*back.key);
  clock_.Advance(absl::Seconds(2));
  server->Tick();
  EXPECT_EQ(server.jobs().Find("iris")->epoch()->number, 2u) << "the other has not come back";
}

TEST_P(RestoreTest, AGroupIsRegisteredOnce) {
  std::shared_ptr<const GroupPlan> plan;
  {
    Incarnate server(path_, clock_, options_);
    const Joined one = Join(server, NewHello(10, 0));
    Join(server, NewHello(11, 1));
    server->Register(*one.key, 5, Model());
    plan = one.link->Last<Registered>()->plan;
  }
  Incarnate server(path_, clock_, options_);
  const Joined back = Join(server, NewHello(11, 1), 1);
  server->Register(*back.key, 6, Model());
  ASSERT_NE(back.link->Last<Registered>(), nullptr);
  EXPECT_EQ(back.link->Last<Registered>()->request, 6u);
  EXPECT_EQ(back.link->Last<Registered>()->plan->id, plan->id);
  GroupSpec other = Model();
  other.tensors[0].shape = {5};
  server->Register(*back.key, 7, other);
  ASSERT_NE(back.link->Last<Refused>(), nullptr);
  EXPECT_EQ(back.link->Last<Refused>()->request, 7u);
}

// The worker sent its leave but did not receive the answer.
TEST_P(RestoreTest, WhoHasLeftIsToldSoWhenItAsksAgain) {
  {
    Incarnate server(path_, clock_, options_);
    const Joined one = Join(server, NewHello(10, 0));
    Join(server, NewHello(11, 1));
    server->Leave(*one.key, 5, {});
  }
  Incarnate server(path_, clock_, options_);
  const Joined back = Join(server, NewHello(10, 0), 1);
  ASSERT_THAT(back.key, IsOk());
  server->Leave(*back.key, 5, {});
  ASSERT_NE(back.link->Last<Farewell>(), nullptr);
  EXPECT_EQ(back.link->Last<Farewell>()->request, 5u);
  EXPECT_EQ(Join(server, NewHello(10, 0), 1).key.status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "it has been told";
}

TEST_P(RestoreTest, AJobIsNotForgottenBeforeWhoHasLeftCanHaveHeardOfIt) {
  {
    Incarnate server(path_, clock_, options_);
    const Joined one = Join(server, NewHello(10, 0));
    Join(server, NewHello(11, 1));
    server->Leave(*one.key, 5, {});
  }
  Incarnate server(path_, clock_, options_);
  const Joined two = Join(server, NewHello(11, 1), 1);
  server->Leave(*two.key, 6, {});
  EXPECT_EQ(server->open_jobs(), 1u);
  clock_.Advance(absl::Seconds(6));
  server->Tick();
  EXPECT_EQ(server->open_jobs(), 0u);
  EXPECT_TRUE(server.jobs().all_done());
}

TEST_P(RestoreTest, AServerThatStartsAfterTheEndIsDone) {
  {
    Incarnate server(path_, clock_, options_);
    const Joined one = Join(server, NewHello(10, 0));
    const Joined two = Join(server, NewHello(11, 1));
    server->Leave(*one.key, 5, {});
    server->Leave(*two.key, 6, {});
    EXPECT_TRUE(server.jobs().all_done());
  }
  for (int start = 0; start < 2; ++start) {
    Incarnate server(path_, clock_, options_);
    EXPECT_TRUE(server.jobs().all_done());
  }
}

TEST_P(RestoreTest, GenerationsGrowOverARestart) {
  uint64_t before = 0;
  {
    Incarnate server(path_, clock_, options_);
    const Joined one = Join(server, NewHello(10, 0));
    before = ToNumber(one.link->generations.empty() ? Generation{1} : one.link->generations[0]);
    server->CloseAll("the test says so");
    server->Tick();
  }
  Incarnate server(path_, clock_, options_);
  const Joined again = Join(server, NewHello(20, 0));
  ASSERT_FALSE(again.link->generations.empty());
  EXPECT_GT(ToNumber(again.link->generations[0]), before);
}

// A member may repeat its messages. Superseded records are removed from the log.
TEST_P(RestoreTest, TheLogDoesNotGrowWithWhatMembersSayAgain) {
  constexpr int kTimes = 20000;
  Incarnate server(path_, clock_, options_);
  const Joined one = Join(server, NewHello(10, 0));
  Join(server, NewHello(11, 1));
  server->Register(*one.key, 5, Model());
  const int times = GetParam() ? 100 : kTimes;
  for (int i = 0; i < times; ++i) server->End(*one.key, 6 + i, GroupId{0}, Round{3}, true);
  EXPECT_LT(std::filesystem::file_size(path_ + "/plan"), 1100u << 10);
  for (int i = 0; i < times; ++i) server->End(*one.key, 6 + i, GroupId{0}, Round{3}, true);
  EXPECT_LT(std::filesystem::file_size(path_ + "/plan"), 1100u << 10);
}

// One job stays open, so the log is compacted but never restarted from empty.
TEST_P(RestoreTest, TheLogDoesNotGrowWithJobsThatAreOver) {
  const int jobs = GetParam() ? 50 : 1500;
  {
    Incarnate server(path_, clock_, options_);
    const Joined open = Join(server, NewHello(10, 0));
    Join(server, NewHello(11, 1));
    for (int i = 0; i < jobs; ++i) {
      Hello hello = NewHello(100 + i, 0);
      hello.job = absl::StrCat("short-", i % 10);
      hello.token = std::string(1000, 't');
      hello.world_size = 1;
      const Joined one = Join(server, hello);
      ASSERT_THAT(one.key, IsOk());
      server->Leave(*one.key, 6, {});
      clock_.Advance(absl::Milliseconds(1));
      server->Heartbeat(*open.key);
    }
    EXPECT_EQ(server->open_jobs(), 1u);
    EXPECT_LT(std::filesystem::file_size(path_ + "/plan"), 1100u << 10);
  }
  Incarnate server(path_, clock_, options_);
  ASSERT_THAT(server.status(), IsOk());
  // The server still answers for the jobs that closed last.
  clock_.Advance(absl::Seconds(6));
  server->Tick();
  EXPECT_EQ(server->open_jobs(), 1u);
  Hello late = NewHello(100, 0);
  late.job = "short-0";
  late.token = std::string(1000, 't');
  late.world_size = 1;
  EXPECT_EQ(Join(server, late, 1).key.status().code(), absl::StatusCode::kFailedPrecondition)
      << "it is over, and this is known";
  const Joined next = Join(server, late);
  ASSERT_THAT(next.key, IsOk());
  EXPECT_EQ(ToNumber(next.link->generations.back()), static_cast<uint64_t>(jobs / 10 + 1));
}

// The job stays open, and has a new epoch whenever a worker comes or goes.
TEST_P(RestoreTest, TheLogDoesNotGrowWithWorkersThatComeAndGo) {
  const auto elastic = [](uint64_t incarnation) {
    Hello hello = NewHello(incarnation, 0);
    hello.rank.reset();
    hello.world_size = 1;
    hello.max_workers = 2;
    hello.min_workers = 1;
    return hello;
  };
  const uint64_t comings = GetParam() ? 100 : 4000;
  Joined first;
  const auto epochs = [&first] {
    return std::count_if(
        first.link->signals.begin(), first.link->signals.end(),
        [](const auto& signal) { return std::holds_alternative<EpochBegun>(signal); });
  };
  {
    Incarnate server(path_, clock_, options_);
    first = Join(server, elastic(10));
    server->Register(*first.key, 5, Model());
    server->Ready(*first.key, 6, GroupId{0});
    for (uint64_t i = 0; i < comings; ++i) {
      const Joined next = Join(server, elastic(100 + i));
      ASSERT_THAT(next.key, IsOk());
      server->Ready(*next.key, 5, GroupId{0});
      server->Leave(*next.key, 6, {});
      server->LinkBroken(*next.key, next.link.get());
    }
    ASSERT_EQ(epochs(), static_cast<int64_t>(2 * comings + 1));
    EXPECT_LT(std::filesystem::file_size(path_ + "/plan"), 1100u << 10);
  }
  Incarnate server(path_, clock_, options_);
  ASSERT_THAT(server.status(), IsOk());
  Hello again = elastic(10);
  first = Join(server, again, 1);
  ASSERT_THAT(first.key, IsOk());
  const Joined next = Join(server, elastic(99));
  ASSERT_THAT(next.key, IsOk());
  ASSERT_TRUE(std::holds_alternative<EpochBegun>(first.link->signals.back()));
  EXPECT_EQ(std::get<EpochBegun>(first.link->signals.back()).epoch->number, 2 * comings + 2);
}

// Member numbers continue after the highest one that was given, even if that member left before the
// start and is forgotten.
TEST_P(RestoreTest, MembersAreNumberedOnWhoeverHasGone) {
  uint32_t last = 0;
  {
    Incarnate server(path_, clock_, options_);
    Join(server, NewHello(10, 0));
    for (uint64_t i = 0; i < 3; ++i) {
      // A member of another job joins, so that records follow those of the member that left before.
      Hello hello = NewHello(20 + i, 0);
      hello.job = absl::StrCat("other-", i);
      Join(server, hello);
      hello = NewHello(11 + i, 1);
      hello.world_size = 3;
      hello.job = "three";
      const Joined leaves = Join(server, hello);
      ASSERT_THAT(leaves.key, IsOk());
      last = ToNumber(leaves.key->member);
      if (i == 0) {
        hello = NewHello(30, 0);
        hello.world_size = 3;
        hello.job = "three";
        ASSERT_THAT(Join(server, hello).key, IsOk());
      }
      server->Leave(*leaves.key, 5, {});
    }
  }
  Incarnate server(path_, clock_, options_);
  Hello hello = NewHello(40, 1);
  hello.world_size = 3;
  hello.job = "three";
  const Joined next = Join(server, hello);
  ASSERT_THAT(next.key, IsOk());
  EXPECT_EQ(ToNumber(next.key->member), last + 1);
}

class QuorumRestoreTest : public RestoreTest {
 protected:
  // Starts two workers of a group whose quorum is one.
  void Start(Incarnate& server, uint64_t generation) {
    server.jobs().arrivals().SetSink(
        [&server](const Arrival& arrival) { server->Arrived(ServerIndex{0}, {arrival}); });
    for (uint32_t rank : {0, 1})
      members_[rank] = Join(server, NewHello(10 + rank, rank), generation);
    if (generation != 0) return;
    GroupSpec spec = Model();
    spec.policy = Quorum{.least = 1};
    server->Register(*members_[0].key, 5, spec);
  }
  std::shared_ptr<RecordingSink> Push(Incarnate& server, uint32_t rank, uint64_t round) {
    PushHeader header;
    header.generation = Generation{1};
    header.round = Round{round};
    header.member = members_[rank].key->member;
    header.incarnation = Incarnation{10 + rank};
    auto sink = std::make_shared<RecordingSink>();
    server.jobs().Find("iris")->Push(header, PayloadOf(BytesOf<float>({1, 2, 3, 4})), sink);
    return sink;
  }

  Joined members_[2];
};
INSTANTIATE_TEST_SUITE_P(Each, QuorumRestoreTest, ::testing::Bool(), RestoreNames());

// The set of the round is stored, but the contribution for which it was fixed is lost.
TEST_P(QuorumRestoreTest, ASetThatWasFixedStaysWhatItIs) {
  {
    Incarnate server(path_, clock_, options_);
    Start(server, 0);
    Push(server, 1, 1);
    Push(server, 1, 2);
    // The set was stored, but the server was killed before the round was closed.
    PlanChange change{9, "iris", Generation{1}, QuorumSet{GroupId{0}, Round{3}, {MemberId{1}}}, 77};
    ASSERT_THAT(server.store().Append(change), IsOk());
  }
  Incarnate server(path_, clock_, options_);
  Start(server, 1);
  const auto other = Push(server, 0, 3);
  EXPECT_EQ(other->count(), 0u) << "it is another's step";
  const auto one = Push(server, 1, 3);
  EXPECT_THAT(one->last().header.contributors, testing::ElementsAre(1));
  EXPECT_THAT(other->last().header.contributors, testing::ElementsAre(1));
  EXPECT_EQ(Push(server, 0, 4)->count(), 1u) << "the coordinator goes on with the next";
}

TEST_P(QuorumRestoreTest, TheLogDoesNotGrowWithTheSteps) {
  ExpectTheLogDoesNotGrow(
      [this](Incarnate& server, uint64_t generation) { Start(server, generation); },
      [this](Incarnate& server, uint64_t step) { return Push(server, 0, step)->count(); });
}

class NormRestoreTest : public RestoreTest {
 protected:
  // Starts one worker. The server clips the norm of its gradients to 1.
  void Start(Incarnate& server, uint64_t generation) {
    server.jobs().reduced().SetSink(
        [&server](const ReducedChunk& chunk) { server->Reduced(ServerIndex{0}, {chunk}); });
    Hello hello = NewHello(10, 0);
    hello.world_size = 1;
    member_ = Join(server, hello, generation);
    if (generation != 0) return;
    GroupSpec spec = Model();
    spec.rule = Optimizer(Sgd{.learning_rate = 1});
    spec.clip_norm = 1;
    server->Register(*member_.key, 5, spec);
    Push(server, 0, 0);
  }
  std::shared_ptr<RecordingSink> Push(Incarnate& server, uint64_t round, float value) {
    PushHeader header;
    header.generation = Generation{1};
    header.round = Round{round};
    header.member = member_.key->member;
    header.incarnation = Incarnation{10};
    auto sink = std::make_shared<RecordingSink>();
    const std::vector<float> values(4, value);
    server.jobs().Find("iris")->Push(header, PayloadOf(BytesOf<float>(values)), sink);
    return sink;
  }

  Joined member_;
};
INSTANTIATE_TEST_SUITE_P(Each, NormRestoreTest, ::testing::Bool(), RestoreNames());

// The norms were stored, and other servers may have closed the round with them.
TEST_P(NormRestoreTest, NormsThatWereToldStayWhatTheyAre) {
  {
    Incarnate server(path_, clock_, options_);
    Start(server, 0);
    Push(server, 1, 2);
    // The norms were stored, but the server was killed before the round was closed.
    PlanChange change{99, "iris", Generation{1}, StepNorms{GroupId{0}, Round{2}, 1, 0.125, {}}, 77};
    ASSERT_THAT(server.store().Append(change), IsOk());
  }
  Incarnate server(path_, clock_, options_);
  ASSERT_THAT(server.status(), IsOk());
  Start(server, 1);
  // The first step subtracts a quarter of 2, and this step subtracts an eighth of 8.
  EXPECT_THAT(Push(server, 2, 8)->values<float>(), testing::Each(-1.5f));
  EXPECT_THAT(Push(server, 3, 8)->values<float>(), testing::Each(-2.0f))
      << "the coordinator goes on";
}

TEST_P(NormRestoreTest, TheLogDoesNotGrowWithTheSteps) {
  ExpectTheLogDoesNotGrow(
      [this](Incarnate& server, uint64_t generation) { Start(server, generation); },
      [this](Incarnate& server, uint64_t step) { return Push(server, step, 1)->count(); });
}

// The process is killed while it writes a record, after any number of bytes. What was stored before
// must be restored.
TEST_P(RestoreTest, ComesBackFromALogThatIsCutAtEveryByte) {
  {
    Incarnate server(path_, clock_, options_);
    const Joined one = Join(server, NewHello(10, 0));
    const Joined two = Join(server, NewHello(11, 1));
    server->Register(*one.key, 5, Model());
    server->End(*one.key, 6, GroupId{0}, Round{3}, true);
    server->Leave(*two.key, 7, {});
  }
  const std::string plan = path_ + "/plan";
  std::ifstream file(plan, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  // The messages that a returning member is sent. Their amount can only grow with the length of the
  // log.
  size_t epochs = 0, groups = 0, refused = 0;
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    std::ofstream(plan, std::ios::binary | std::ios::trunc) << whole.substr(0, cut);
    std::filesystem::remove(plan + ".copy");
    Incarnate server(path_, clock_, options_);
    if (!server.status().ok()) {
      EXPECT_EQ(server.status().code(), absl::StatusCode::kDataLoss) << cut;
      ++refused;
      continue;
    }
    const Joined back = Join(server, NewHello(10, 0), 1);
    const bool epoch = back.link->Last<EpochBegun>() != nullptr;
    EXPECT_GE(epoch, epochs > 0) << cut;
    epochs += epoch;
    const auto job = server.jobs().Find("iris");
    const bool group = job != nullptr && !job->Progress().empty();
    EXPECT_GE(group, groups > 0) << cut;
    groups += group;
  }
  EXPECT_GT(refused, 0u) << "a log without its first record is none";
  EXPECT_GT(epochs, groups);
  EXPECT_GT(groups, 0u);
}

}  // namespace
}  // namespace syncgrads::server
