// Workers that join, die and come back while a job runs.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"

namespace syncgrads::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kAborted = absl::StatusCode::kAborted;

server::ServerOptions Quick() {
  server::ServerOptions options;
  options.heartbeat_interval = absl::Milliseconds(50);
  options.stream_grace = absl::Milliseconds(200);
  return options;
}

// A worker with a state of two numbers: `w`, to which each step adds the sum of all contributions,
// and `steps`, the number of steps that have been applied.
struct Replica {
  Replica(const Cluster& cluster, const std::string& name, ClientOptions options = {}) {
    options.coordinator = cluster.coordinator();
    options.job = "elastic";
    options.name = name;
    client = std::make_unique<Client>(options);
  }

  GroupSpec Spec() const {
    GroupSpec spec{"model", {{"w", DType::kF32, {}}}, Reduction::kSum};
    spec.one_epoch = one_epoch;
    return spec;
  }

  void Begin() {
    ASSERT_OK(client->Join(kTimeout));
    const auto registered = client->Register(Spec(), kTimeout);
    ASSERT_OK(registered);
    group = *registered;
    const NamedTensor state[] = {{{"w", DType::kF32, {}}, &w},
                                 {{"steps", DType::kI64, {}}, &steps}};
    const auto newcomer = group->RegisterState(state, kTimeout);
    ASSERT_OK(newcomer);
    EXPECT_EQ(*newcomer, client->is_newcomer());
  }

  absl::Status Push(float value) {
    pushed = value;
    return group->Push(TensorId{0}, &pushed, sizeof pushed, &sum);
  }
  absl::Status Finish(absl::Duration timeout = kTimeout) {
    const auto done = group->WaitStep(timeout);
    if (!done.ok()) return done.status();
    w += sum;
    ++steps;
    return absl::OkStatus();
  }
  void Step(float value) {
    ASSERT_OK(Push(value));
    ASSERT_OK(Finish());
  }
  void StepTo(uint64_t last, float value) {
    while (group->step() <= last) Step(value);
  }

  // Returns an empty outcome if no step has ended yet.
  StepOutcome Last() const {
    const auto last = group->LastStep(kTimeout);
    return last.ok() ? *last : StepOutcome();
  }

  std::unique_ptr<Client> client;
  bool one_epoch = false;
  Group* group = nullptr;
  float w = 0, pushed = 0, sum = 0;
  int64_t steps = 0;
};

ClientOptions Elastic(uint32_t world_size, uint32_t max_workers, uint32_t min_workers = 0) {
  ClientOptions options;
  options.world_size = world_size;
  options.max_workers = max_workers;
  options.min_workers = min_workers;
  return options;
}

void Together(const std::vector<std::function<void()>>& work) {
  std::vector<std::thread> threads;
  for (const std::function<void()>& one : work) threads.emplace_back(one);
  for (std::thread& thread : threads) thread.join();
}

TEST(ElasticTest, ANewcomerGetsTheStateAndAllEndEqual) {
  Cluster cluster(2, Quick());
  Replica a(cluster, "a", Elastic(2, 3)), b(cluster, "b", Elastic(2, 3)),
      c(cluster, "c", Elastic(2, 3));
  Together({[&] { a.Begin(), a.StepTo(3, 1); }, [&] { b.Begin(), b.StepTo(3, 10); }});
  uint64_t first = 0;
  Together({[&] {
              // Step until the newcomer is a member.
              while (a.Last().members.size() < 3) a.Step(1);
              a.StepTo(a.Last().step + 3, 1);
            },
            [&] {
              while (b.Last().members.size() < 3) b.Step(10);
              b.StepTo(b.Last().step + 3, 10);
            },
            [&] {
              c.Begin();
              first = c.group->step();
              EXPECT_TRUE(c.client->is_newcomer());
              EXPECT_EQ(c.steps + 1, static_cast<int64_t>(first));
              EXPECT_EQ(c.w, 11 * c.steps);
              c.StepTo(first + 3, 100);
            }});
  EXPECT_GE(first, 4u);
  EXPECT_EQ(a.w, b.w);
  EXPECT_EQ(a.w, c.w);
  EXPECT_EQ(a.steps, c.steps);
  EXPECT_EQ(a.client->world_size(), 3u);
  EXPECT_THAT(a.Last().members, ElementsAre("a", "b", "c"));
  EXPECT_THAT(a.Last().contributors, ElementsAre(0, 1, 2));
}

TEST(ElasticTest, ANewcomerGetsTheParametersOfTheServersOptimizer) {
  Cluster cluster(1, Quick());
  const auto begin = [](Replica& replica, float value) {
    ASSERT_OK(replica.client->Join(kTimeout));
    replica.w = value;
    const auto group = replica.client->Register(
        {"model", {{"w", DType::kF32, {}}}, Optimizer(Sgd{.learning_rate = 1})}, kTimeout);
    ASSERT_OK(group);
    replica.group = *group;
    void* const tensors[] = {&replica.w};
    if (!replica.client->is_newcomer()) {
      ASSERT_OK(replica.group->Broadcast(0, tensors, kTimeout));
    }
    const NamedTensor state[] = {{{"w", DType::kF32, {}}, &replica.w},
                                 {{"steps", DType::kI64, {}}, &replica.steps}};
    ASSERT_OK(replica.group->RegisterState(state, kTimeout));
  };
  const auto step = [](Replica& replica) {
    replica.pushed = 1;
    ASSERT_OK(replica.group->Push(TensorId{0}, &replica.pushed, sizeof(float), &replica.w));
    ASSERT_OK(replica.group->WaitStep(kTimeout));
    ++replica.steps;
  };
  Replica a(cluster, "a", Elastic(1, 2)), b(cluster, "b", Elastic(1, 2));
  begin(a, 100);
  step(a);
  step(a);
  Together({[&] {
              while (a.Last().members.size() < 2) step(a);
            },
            [&] {
              begin(b, -1);
              EXPECT_EQ(b.w, 100 - b.steps);
              step(b);
            }});
  EXPECT_EQ(a.w, b.w);
  EXPECT_EQ(a.steps, b.steps);
}

TEST(ElasticTest, AKilledWorkerComesBackUnderItsNameAtOnce) {
  server::ServerOptions options = Quick();
  options.stream_grace = absl::Minutes(1);  // too long to be the reason that it comes back
  Cluster cluster(2, options);
  Replica a(cluster, "a", Elastic(2, 2)), b(cluster, "b", Elastic(2, 2)),
      again(cluster, "b", Elastic(2, 2));
  Together({[&] { a.Begin(), a.StepTo(2, 1); }, [&] { b.Begin(), b.StepTo(2, 10); }});
  b.client->Abandon();
  ASSERT_NE(cluster.journal().WaitForLine({"stream of worker \"b\" broke"}, kTimeout), "");
  // It is not known in advance at which step "b" comes back. Until then "a" continues, so that "b"
  // can get its state from it.
  std::atomic<uint64_t> last = 0;
  Together({[&] {
              while (last == 0) a.Step(1);
              a.StepTo(last, 1);
            },
            [&] {
              again.Begin();
              last = again.group->step() + 3;
              again.StepTo(last, 10);
            }});
  EXPECT_TRUE(again.client->is_newcomer());
  EXPECT_EQ(again.client->name(), "b");
  EXPECT_EQ(a.w, again.w);
  EXPECT_NE(cluster.journal().WaitForLine({"superseded"}, kTimeout), "");
}

TEST(ElasticTest, WhenTheDonorDiesTheNextOneGives) {
  Cluster cluster(2, Quick());
  Replica a(cluster, "a", Elastic(2, 3)), b(cluster, "b", Elastic(2, 3)),
      c(cluster, "c", Elastic(2, 3));
  Together({[&] { a.Begin(), a.StepTo(2, 1); }, [&] { b.Begin(), b.StepTo(2, 10); }});
  // "a" is first in rank order and therefore the donor, but it dies before the step at which it
  // would send its state.
  Together({[&] { b.StepTo(5, 10); }, [&] { c.Begin(), c.StepTo(5, 100); },
            [&] {
              ASSERT_NE(cluster.journal().WaitForLine({"epoch 2 of 3 workers"}, kTimeout), "");
              a.client->Abandon();
            }});
  EXPECT_EQ(b.w, c.w);
  EXPECT_EQ(b.steps, c.steps);
  EXPECT_THAT(b.Last().members, ElementsAre("b", "c"));
}

TEST(ElasticTest, ANewcomerThatDiesIsLeftBehind) {
  Cluster cluster(1, Quick());
  Replica a(cluster, "a", Elastic(1, 2)), b(cluster, "b", Elastic(1, 2));
  a.Begin();
  a.StepTo(2, 1);
  ASSERT_OK(b.client->Join(kTimeout));  // never requests the state
  b.client->Abandon();
  a.StepTo(5, 1);
  EXPECT_EQ(a.w, 5);
}

TEST(ElasticTest, BelowTheMinimumTheJobWaitsAndSaysSo) {
  Cluster cluster(2, Quick());
  Replica a(cluster, "a", Elastic(2, 2, 2)), b(cluster, "b", Elastic(2, 2, 2)),
      again(cluster, "b", Elastic(2, 2, 2));
  Together({[&] { a.Begin(), a.StepTo(2, 1); }, [&] { b.Begin(), b.StepTo(2, 10); }});
  b.client->Abandon();
  ASSERT_NE(cluster.journal().WaitForLine({"waits for workers: 1 of at least 2"}, kTimeout), "");
  ASSERT_OK(a.Push(1));
  EXPECT_THAT(AwaitReason({"waits for workers: 1 of at least 2"},
                          [&] { return a.Finish(absl::Seconds(1)); }),
              HasSubstr("waits for workers: 1 of at least 2"));
  Together({[&] {
              ASSERT_OK(a.Finish());
              a.StepTo(5, 1);
            },
            [&] { again.Begin(), again.StepTo(5, 10); }});
  EXPECT_EQ(a.w, again.w);
  EXPECT_EQ(a.steps, 5);
}

TEST(ElasticTest, AContributionOfAnotherEpochIsMadeAgain) {
  Cluster cluster(2, Quick());
  Replica a(cluster, "a", Elastic(1, 2)), b(cluster, "b", Elastic(1, 2));
  a.one_epoch = b.one_epoch = true;
  a.Begin();
  const auto first = a.group->BeginStep();
  ASSERT_OK(first);
  EXPECT_EQ(first->world_size, 1u);
  std::thread newcomer([&] {
    b.Begin();
    const auto members = b.group->BeginStep();
    ASSERT_OK(members);
    EXPECT_EQ(members->world_size, 2u);
    EXPECT_EQ(members->rank, 1u);
    b.Step(10);
  });
  ASSERT_NE(cluster.journal().WaitForLine({"epoch 2 of 2 workers"}, kTimeout), "");
  // The contribution belongs to epoch 1, which is over.
  ASSERT_OK(a.Push(1));
  EXPECT_EQ(a.Finish().code(), kAborted);
  ASSERT_OK(a.group->RestartStep(kTimeout));
  const auto second = a.group->BeginStep();
  ASSERT_OK(second);
  EXPECT_EQ(second->world_size, 2u);
  a.Step(2);
  newcomer.join();
  EXPECT_EQ(a.w, 12);
  EXPECT_EQ(b.w, 12);
}

TEST(ElasticTest, AStepIsBegunAgainWhileANewcomerTakesTheState) {
  Cluster cluster(1, Quick());
  ClientOptions options = Elastic(1, 2);
  options.coordinator = cluster.coordinator();
  options.job = "elastic";
  // There are two chunks, so that one of them can be skipped as a whole.
  GroupSpec spec{"model", {{"v", DType::kF32, {2}}, {"w", DType::kF32, {2}}}, Reduction::kSum, 8};
  spec.one_epoch = true;
  float state = 3;
  const NamedTensor states[] = {{{"state", DType::kF32, {}}, &state}};
  Client a(options);
  ASSERT_OK(a.Join(kTimeout));
  const auto group = a.Register(spec, kTimeout);
  ASSERT_OK(group);
  ASSERT_OK((*group)->RegisterState(states, kTimeout));
  ASSERT_OK((*group)->BeginStep());

  std::thread newcomer([&] {
    Client b(options);
    ASSERT_OK(b.Join(kTimeout));
    const auto group = b.Register(spec, kTimeout);
    ASSERT_OK(group);
    float taken = 0;
    const NamedTensor states[] = {{{"state", DType::kF32, {}}, &taken}};
    ASSERT_OK((*group)->RegisterState(states, kTimeout));
    EXPECT_EQ(taken, 3);
    ASSERT_OK((*group)->BeginStep());
    void* const none[] = {nullptr, nullptr};
    ASSERT_OK((*group)->SkipAll(none));
    ASSERT_OK((*group)->WaitStep(kTimeout));
  });
  ASSERT_NE(cluster.journal().WaitForLine({"epoch 2 of 2 workers"}, kTimeout), "");
  // The contribution belongs to epoch 1, so it is refused. The skip is accepted and waits for the
  // newcomer, which waits for this worker's state.
  float values[2] = {1, 2}, result[2] = {};
  const auto push = [&] {
    ASSERT_OK((*group)->Push(TensorId{0}, values, sizeof values, result));
    ASSERT_OK((*group)->Skip(TensorId{1}, nullptr));
  };
  push();
  EXPECT_EQ((*group)->WaitStep(kTimeout).status().code(), kAborted);
  ASSERT_OK((*group)->RestartStep(kTimeout));
  ASSERT_OK((*group)->BeginStep());
  push();
  ASSERT_OK((*group)->WaitStep(kTimeout));
  newcomer.join();
  EXPECT_THAT(result, ElementsAre(1, 2));
}

TEST(ElasticTest, AJobThatIsNotElasticTakesNobodyIn) {
  Cluster cluster(1, Quick());
  Replica a(cluster, "a"), b(cluster, "b");
  a.Begin();
  const absl::Status refused = b.client->Join(kTimeout);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no more members are admitted"));
}

TEST(ElasticTest, AWorkerThatDoesNotBeginJobsSaysThatNoneIsRunning) {
  Cluster cluster(1, Quick());
  ClientOptions options = Elastic(1, 2);
  options.only_running = true;
  Replica a(cluster, "a", options);
  const absl::Status refused = a.client->Join(kTimeout);
  EXPECT_EQ(refused.code(), kAborted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no job \"elastic\" is running"));
}

TEST(ElasticTest, AWorkerThatIsThereButDoesNotContributeIsDropped) {
  Cluster cluster(1, Quick());
  ClientOptions options = Elastic(2, 2);
  // Longer than this thread is paused between two calls on a busy machine.
  options.step_timeout = absl::Seconds(10);
  Replica a(cluster, "a", options), b(cluster, "b", options);
  Together({[&] { a.Begin(); }, [&] { b.Begin(); }});
  for (int step = 1; step <= 2; ++step) {
    // "a" contributes first, so it is never behind "b".
    ASSERT_OK(a.Push(1));
    ASSERT_OK(b.Push(10));
    ASSERT_OK(a.Finish());
    ASSERT_OK(b.Finish());
  }
  a.StepTo(4, 1);  // "b" is dropped although it sends heartbeats
  // "b" may be informed a moment later; a step that it has started by then fails.
  absl::Status told = b.Push(10);
  if (told.ok()) told = b.Finish();
  EXPECT_EQ(told.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(told.message()), HasSubstr("behind the others"));
}

}  // namespace
}  // namespace syncgrads::testing
