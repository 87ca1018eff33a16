// A coordinator that dies and comes back from what it has stored.

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/coordinator.h"
#include "server/service/plan_store.h"
#include "server/state/state_directory.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using MemberKey = Coordinator::MemberKey;

class RecordingMember : public MemberLink {
 public:
  void Send(Generation generation, const JobSignal& signal) override {
    generations.push_back(generation);
    signals.push_back(signal);
  }
  // The newest of a kind; null if there is none.
  template <typename Kind>
  const Kind* Last() const {
    for (auto signal = signals.rbegin(); signal != signals.rend(); ++signal) {
      if (const auto* found = std::get_if<Kind>(&*signal)) return found;
    }
    return nullptr;
  }

  std::vector<Generation> generations;
  std::vector<JobSignal> signals;
};

Introduction Hello(uint64_t incarnation, uint32_t rank) {
  Introduction hello;
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

// Server 0 of one, from the start to a crash: nothing is done in order at its end.
class Incarnate {
 public:
  explicit Incarnate(const std::string& path, FakeClock& clock)
      : directory_(*StateDirectory::Own(path)), jobs_(ServerIndex{0}, clock) {
    StoredPlan plan;
    plan.start.plan = 77;
    auto store = PlanStore::Open(directory_->plan_path(), plan);
    if (absl::IsNotFound(store.status())) {
      store = PlanStore::Create(directory_->plan_path(), plan.start);
    }
    status_ = store.status();
    if (!status_.ok()) return;
    store_ = *std::move(store);
    std::vector<PlanChange> changes;
    for (const Stored& record : plan.records) {
      if (const auto* change = std::get_if<PlanChange>(&record)) changes.push_back(*change);
    }
    const auto held = jobs_.Restore({directory_.get(), store_.get()}, plan.start, changes);
    status_ = held.status();
    if (!status_.ok()) return;
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{absl::Seconds(2), absl::Seconds(30), absl::Seconds(5)},
        PlanLog(1, "", plan.start.plan), jobs_, clock, journal_);
    coordinator_->Restore(*store_, plan.start, plan.records, *held);
  }

  const absl::Status& status() const { return status_; }
  Coordinator& operator*() { return *coordinator_; }
  Coordinator* operator->() { return coordinator_.get(); }
  Jobs& jobs() { return jobs_; }

 private:
  LineJournal journal_;
  std::unique_ptr<StateDirectory> directory_;
  std::unique_ptr<PlanStore> store_;
  Jobs jobs_;
  absl::Status status_;
  std::unique_ptr<Coordinator> coordinator_;
};

class RestoreTest : public ::testing::Test {
 protected:
  RestoreTest() { std::filesystem::remove_all(path_); }
  ~RestoreTest() override { std::filesystem::remove_all(path_); }

  struct Joined {
    std::shared_ptr<RecordingMember> link = std::make_shared<RecordingMember>();
    absl::StatusOr<MemberKey> key;
  };
  static Joined Join(Incarnate& server, Introduction hello, uint64_t generation = 0) {
    hello.generation = Generation{generation};
    Joined joined;
    joined.key = server->Admit(hello, joined.link);
    return joined;
  }

  // Takes 10000 steps, and one more after a restart. `start` has the workers join, a group
  // registered unless there is a generation to come back to; `take` takes a step and says how
  // many answers there were to it.
  void ExpectTheLogDoesNotGrow(
      const std::function<void(Incarnate& server, uint64_t generation)>& start,
      const std::function<size_t(Incarnate& server, uint64_t step)>& take) {
    constexpr uint64_t kSteps = 10000;
    const auto bytes = [this] { return std::filesystem::file_size(path_ + "/plan"); };
    uintmax_t most = 0;
    {
      Incarnate server(path_, clock_);
      start(server, 0);
      const uintmax_t before = bytes();
      for (uint64_t step = 1; step <= kSteps; ++step) {
        ASSERT_EQ(take(server, step), 1u) << step;
        if (step == 100) most = before + 50 * (bytes() - before);
      }
      EXPECT_LT(bytes(), most);
    }
    Incarnate server(path_, clock_);
    ASSERT_THAT(server.status(), IsOk());
    start(server, 1);
    EXPECT_EQ(take(server, kSteps + 1), 1u);
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/restore_test");
  FakeClock clock_;
};

TEST_F(RestoreTest, MembersComeBackAsWhoTheyWereWithAWholeLease) {
  Epoch epoch;
  {
    Incarnate server(path_, clock_);
    Join(server, Hello(10, 1));
    const Joined one = Join(server, Hello(11, 0));
    epoch = *one.link->Last<Epoch>();
  }
  clock_.Advance(absl::Hours(1));
  Incarnate server(path_, clock_);
  server->Tick();
  const Joined back = Join(server, Hello(10, 1), 1);
  ASSERT_THAT(back.key, IsOk());
  EXPECT_EQ(back.key->member, MemberId{0});
  EXPECT_EQ(*back.link->Last<Epoch>(), epoch);
  EXPECT_EQ(back.link->Last<Welcome>()->name, "worker-1");
  clock_.Advance(absl::Seconds(29));
  server->Tick();
  EXPECT_EQ(server.jobs().Find("iris")->epoch()->number, 1u);
  server->Heartbeat(*back.key);
  clock_.Advance(absl::Seconds(2));
  server->Tick();
  EXPECT_EQ(server.jobs().Find("iris")->epoch()->number, 2u) << "the other has not come back";
}

TEST_F(RestoreTest, AGroupIsRegisteredOnce) {
  std::shared_ptr<const GroupPlan> plan;
  {
    Incarnate server(path_, clock_);
    const Joined one = Join(server, Hello(10, 0));
    Join(server, Hello(11, 1));
    server->Register(*one.key, 5, Model());
    plan = one.link->Last<Registered>()->plan;
  }
  Incarnate server(path_, clock_);
  const Joined back = Join(server, Hello(11, 1), 1);
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

// It has asked, and has not heard.
TEST_F(RestoreTest, WhoHasLeftIsToldSoWhenItAsksAgain) {
  {
    Incarnate server(path_, clock_);
    const Joined one = Join(server, Hello(10, 0));
    Join(server, Hello(11, 1));
    server->Leave(*one.key, 5, {});
  }
  Incarnate server(path_, clock_);
  const Joined back = Join(server, Hello(10, 0), 1);
  ASSERT_THAT(back.key, IsOk());
  server->Leave(*back.key, 5, {});
  ASSERT_NE(back.link->Last<Farewell>(), nullptr);
  EXPECT_EQ(back.link->Last<Farewell>()->request, 5u);
  EXPECT_EQ(Join(server, Hello(10, 0), 1).key.status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "it has been told";
}

TEST_F(RestoreTest, AJobIsNotForgottenBeforeWhoHasLeftCanHaveHeardOfIt) {
  {
    Incarnate server(path_, clock_);
    const Joined one = Join(server, Hello(10, 0));
    Join(server, Hello(11, 1));
    server->Leave(*one.key, 5, {});
  }
  Incarnate server(path_, clock_);
  const Joined two = Join(server, Hello(11, 1), 1);
  server->Leave(*two.key, 6, {});
  EXPECT_EQ(server->open_jobs(), 1u);
  clock_.Advance(absl::Seconds(6));
  server->Tick();
  EXPECT_EQ(server->open_jobs(), 0u);
  EXPECT_TRUE(server.jobs().all_done());
}

TEST_F(RestoreTest, AServerThatStartsAfterTheEndIsDone) {
  {
    Incarnate server(path_, clock_);
    const Joined one = Join(server, Hello(10, 0));
    const Joined two = Join(server, Hello(11, 1));
    server->Leave(*one.key, 5, {});
    server->Leave(*two.key, 6, {});
    EXPECT_TRUE(server.jobs().all_done());
  }
  for (int start = 0; start < 2; ++start) {
    Incarnate server(path_, clock_);
    EXPECT_TRUE(server.jobs().all_done());
  }
}

TEST_F(RestoreTest, GenerationsGrowOverARestart) {
  uint64_t before = 0;
  {
    Incarnate server(path_, clock_);
    const Joined one = Join(server, Hello(10, 0));
    before = ToNumber(one.link->generations.empty() ? Generation{1} : one.link->generations[0]);
    server->CloseAll("the test says so");
    server->Tick();
  }
  Incarnate server(path_, clock_);
  const Joined again = Join(server, Hello(20, 0));
  ASSERT_FALSE(again.link->generations.empty());
  EXPECT_GT(ToNumber(again.link->generations[0]), before);
}

class QuorumRestoreTest : public RestoreTest {
 protected:
  // Two workers of a group in which one is enough.
  void Start(Incarnate& server, uint64_t generation) {
    server.jobs().arrivals().SetSink(
        [&server](const Arrival& arrival) { server->Arrived(ServerIndex{0}, {arrival}); });
    for (uint32_t rank : {0, 1}) members_[rank] = Join(server, Hello(10 + rank, rank), generation);
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

// The set is stored, and told; the contribution that it was fixed for is lost.
TEST_F(QuorumRestoreTest, ASetThatWasFixedStaysWhatItIs) {
  {
    Incarnate server(path_, clock_);
    Start(server, 0);
    Push(server, 1, 1);
    Push(server, 1, 2);
    // As if it had been killed before the round was closed.
    PlanChange change{9, "iris", Generation{1}, QuorumSet{GroupId{0}, Round{3}, {MemberId{1}}}, 77};
    server.jobs().Apply(change);
  }
  Incarnate server(path_, clock_);
  Start(server, 1);
  const auto other = Push(server, 0, 3);
  EXPECT_EQ(other->count(), 0u) << "it is another's step";
  const auto one = Push(server, 1, 3);
  EXPECT_THAT(one->last().header.contributors, testing::ElementsAre(1));
  EXPECT_THAT(other->last().header.contributors, testing::ElementsAre(1));
  EXPECT_EQ(Push(server, 0, 4)->count(), 1u) << "the coordinator goes on with the next";
}

TEST_F(QuorumRestoreTest, TheLogDoesNotGrowWithTheSteps) {
  ExpectTheLogDoesNotGrow(
      [this](Incarnate& server, uint64_t generation) { Start(server, generation); },
      [this](Incarnate& server, uint64_t step) { return Push(server, 0, step)->count(); });
}

class NormRestoreTest : public RestoreTest {
 protected:
  // One worker, of whose gradients the servers clip the norm to 1.
  void Start(Incarnate& server, uint64_t generation) {
    server.jobs().reduced().SetSink(
        [&server](const ReducedChunk& chunk) { server->Reduced(ServerIndex{0}, {chunk}); });
    Introduction hello = Hello(10, 0);
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

// The norms were stored and told, and others may have closed the round with them.
TEST_F(NormRestoreTest, NormsThatWereToldStayWhatTheyAre) {
  {
    Incarnate server(path_, clock_);
    Start(server, 0);
    Push(server, 1, 2);
    // As if it had been killed before the round was closed.
    PlanChange change{99, "iris", Generation{1}, StepNorms{GroupId{0}, Round{2}, 1, 0.125, {}}, 77};
    server.jobs().Apply(change);
  }
  Incarnate server(path_, clock_);
  ASSERT_THAT(server.status(), IsOk());
  Start(server, 1);
  // A quarter of 2 in the first step, an eighth of 8 in this one.
  EXPECT_THAT(Push(server, 2, 8)->values<float>(), testing::Each(-1.5f));
  EXPECT_THAT(Push(server, 3, 8)->values<float>(), testing::Each(-2.0f))
      << "the coordinator goes on";
}

TEST_F(NormRestoreTest, TheLogDoesNotGrowWithTheSteps) {
  ExpectTheLogDoesNotGrow(
      [this](Incarnate& server, uint64_t generation) { Start(server, generation); },
      [this](Incarnate& server, uint64_t step) { return Push(server, step, 1)->count(); });
}

// Killed while a record is written, at any of its bytes: what was said before is
// still so.
TEST_F(RestoreTest, ComesBackFromALogThatIsCutAtEveryByte) {
  {
    Incarnate server(path_, clock_);
    const Joined one = Join(server, Hello(10, 0));
    const Joined two = Join(server, Hello(11, 1));
    server->Register(*one.key, 5, Model());
    server->End(*one.key, 6, GroupId{0}, Round{3}, true);
    server->Leave(*two.key, 7, {});
  }
  const std::string plan = path_ + "/plan";
  std::ifstream file(plan, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  // What a member hears that comes back; it can only grow with the log.
  size_t epochs = 0, groups = 0, refused = 0;
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    std::ofstream(plan, std::ios::binary | std::ios::trunc) << whole.substr(0, cut);
    Incarnate server(path_, clock_);
    if (!server.status().ok()) {
      EXPECT_EQ(server.status().code(), absl::StatusCode::kDataLoss) << cut;
      ++refused;
      continue;
    }
    const Joined back = Join(server, Hello(10, 0), 1);
    const bool epoch = back.link->Last<Epoch>() != nullptr;
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
