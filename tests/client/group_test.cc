// Registered groups with real servers: steps with averages and sums, skips, ends, and optimizers on
// the servers.

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GroupSpec OneWeight(UpdateRule rule) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF64, {1}}};
  spec.rule = rule;
  return spec;
}

// Runs one step with three workers and gradients -5, 0 and 2, and applies it with learning rate 0.1
// to the parameter w = 1. Checks that w becomes `expected`. If `second_skips`, the second worker
// skips.
void ExpectStep(UpdateRule rule, bool second_skips, const std::vector<double>& weights,
                double expected, uint32_t contributors) {
  Cluster cluster;
  Workers workers(cluster, 3);
  const double gradients[] = {-5, 0, 2};
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(OneWeight(rule), kTimeout);
    ASSERT_OK(group);
    if (!weights.empty()) ASSERT_OK((*group)->SetWeight(weights[rank]));
    double gradient = gradients[rank];
    if (second_skips && rank == 1) {
      ASSERT_OK((*group)->Skip(TensorId{0}, &gradient));
    } else {
      ASSERT_OK((*group)->Push(TensorId{0}, &gradient, sizeof(gradient), &gradient));
    }
    const auto counts = (*group)->WaitStep(kTimeout);
    ASSERT_OK(counts);
    EXPECT_EQ((*counts)[0].least, contributors);
    EXPECT_EQ((*counts)[0].most, contributors);
    EXPECT_NEAR(1 - 0.1 * gradient, expected, 1e-6);
    EXPECT_EQ((*group)->step(), 2u);
    EXPECT_OK(client.Leave(kTimeout));
  });
}

TEST(GroupTest, AveragesOverAllWorkers) { ExpectStep(Reduction::kAverage, false, {}, 1.1, 3); }
TEST(GroupTest, AveragesOverThoseWhoDoNotSkip) {
  ExpectStep(Reduction::kAverage, true, {}, 1.15, 2);
}
TEST(GroupTest, Sums) { ExpectStep(Reduction::kSum, false, {}, 1.3, 3); }
TEST(GroupTest, AveragesByNumberOfSamples) {
  ExpectStep(Reduction::kAverage, false, {2, 1, 3}, 1.0 + 0.4 / 6, 3);
}

// A refusal by a server is not fatal to the worker.
TEST(GroupTest, AContributionThatIsRefusedCanBeMadeAnew) {
  Cluster cluster;
  Workers workers(cluster, 2);
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(OneWeight(Reduction::kAverage), kTimeout);
    ASSERT_OK(group);
    double gradient = rank == 0 ? 4 : 1;
    if (rank == 0) {
      EXPECT_EQ((*group)->RestartStep(kTimeout).code(), absl::StatusCode::kFailedPrecondition);
      ASSERT_OK((*group)->SetWeight(1e-30));  // below the smallest weight that is accepted
      ASSERT_OK((*group)->Push(TensorId{0}, &gradient, sizeof(gradient), &gradient));
      // A second wait returns the same error.
      for (int wait = 0; wait < 2; ++wait) {
        EXPECT_EQ((*group)->WaitStep(kTimeout).status().code(), absl::StatusCode::kInvalidArgument);
      }
      ASSERT_OK((*group)->RestartStep(kTimeout));
      EXPECT_EQ((*group)->step(), 1u);
      ASSERT_OK((*group)->SetWeight(2));
    }
    ASSERT_OK((*group)->Push(TensorId{0}, &gradient, sizeof(gradient), &gradient));
    const auto counts = (*group)->WaitStep(kTimeout);
    ASSERT_OK(counts);
    EXPECT_EQ((*counts)[0].least, 2u);
    EXPECT_EQ(gradient, 3);  // (2 * 4 + 1) / 3
    EXPECT_OK(client.Leave(kTimeout));
  });
}

TEST(GroupTest, ATensorIsAnsweredWhenItsLastContributionHasArrived) {
  Cluster cluster;
  Workers workers(cluster, 2);
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(OneWeight(Reduction::kAverage), kTimeout);
    ASSERT_OK(group);
    double gradient = 1;
    if (rank == 0) {
      ASSERT_OK((*group)->Push(TensorId{0}, &gradient, sizeof(gradient), &gradient));
      EXPECT_FALSE((*group)->IsAnswered(TensorId{0}));
    }
    ASSERT_OK(client.Barrier("rank 0 has seen that it is not answered", kTimeout));
    if (rank == 1) {
      ASSERT_OK((*group)->Push(TensorId{0}, &gradient, sizeof(gradient), &gradient));
    }
    ASSERT_OK((*group)->Wait(TensorId{0}, kTimeout));
    EXPECT_TRUE((*group)->IsAnswered(TensorId{0}));
    EXPECT_TRUE((*group)->IsAnswered(TensorId{1})) << "Wait says that there is none";
    ASSERT_OK((*group)->WaitStep(kTimeout));
    EXPECT_OK(client.Leave(kTimeout));
  });
}

// Makes tensors of many sizes over several chunks: small ones share a chunk, and a large one is
// split.
GroupSpec Model(int tensors = 40) {
  GroupSpec spec;
  spec.name = "model";
  for (int t = 0; t < tensors; ++t) {
    spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {t == 7 ? 100000 : 1 + 300 * t}});
  }
  spec.chunk_bytes = 64 << 10;
  return spec;
}

struct Tree {
  explicit Tree(const GroupSpec& spec) {
    for (const TensorSpec& tensor : spec.tensors) values.emplace_back(tensor.elements());
  }
  std::vector<void*> pointers() {
    std::vector<void*> pointers;
    for (std::vector<float>& tensor : values) pointers.push_back(tensor.data());
    return pointers;
  }
  std::vector<std::vector<float>> values;
};

TEST(GroupTest, PushesTensorsInAnyOrderInPlaceOverSeveralServers) {
  Cluster cluster(3);
  Workers workers(cluster, 3);
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(Model(), kTimeout);
    ASSERT_OK(group);
    Tree tree((*group)->spec());
    const uint32_t n = tree.values.size();
    for (uint64_t step = 1; step <= 5; ++step) {
      ASSERT_EQ((*group)->step(), step);
      for (uint32_t i = 0; i < n; ++i) {
        // Each worker pushes the tensors in another order: forwards, backwards, or from the middle
        // on.
        const uint32_t t = rank == 0 ? i : rank == 1 ? n - 1 - i : (i + n / 2) % n;
        std::vector<float>& values = tree.values[t];
        for (size_t e = 0; e < values.size(); ++e) {
          values[e] = static_cast<float>(step * 3 + rank + e % 11 + t);
        }
        ASSERT_OK((*group)->Push(TensorId{t}, values.data(), BytesOf(values), values.data()));
      }
      const auto counts = (*group)->WaitStep(kTimeout);
      ASSERT_OK(counts);
      for (uint32_t t = 0; t < n; ++t) {
        EXPECT_EQ((*counts)[t].least, 3u);
        for (size_t e = 0; e < tree.values[t].size(); ++e) {
          ASSERT_EQ(tree.values[t][e], step * 3 + 1.0f + e % 11 + t) << t << " " << e;
        }
      }
    }
    EXPECT_OK(client.Leave(kTimeout));
  });
}

TEST(GroupTest, LeavesATensorThatNobodyHasAGradientForAsItWas) {
  Cluster cluster(2);
  Workers workers(cluster, 3);
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(Model(5), kTimeout);
    ASSERT_OK(group);
    Tree tree((*group)->spec());
    for (uint32_t t = 0; t < 5; ++t) {
      tree.values[t].assign(tree.values[t].size(), 1.0f + rank);
      // Only workers with a rank below t have a gradient for tensor t.
      if (rank < t) {
        ASSERT_OK((*group)->Push(TensorId{t}, tree.values[t].data(), BytesOf(tree.values[t]),
                                 tree.values[t].data()));
      } else {
        ASSERT_OK((*group)->Skip(TensorId{t}, tree.values[t].data()));
      }
    }
    const auto counts = (*group)->WaitStep(kTimeout);
    ASSERT_OK(counts);
    const float averages[] = {1.0f + rank, 1, 1.5, 2, 2};
    for (uint32_t t = 0; t < 5; ++t) {
      EXPECT_EQ((*counts)[t].most, std::min(t, 3u));
      EXPECT_EQ(tree.values[t], std::vector<float>(tree.values[t].size(), averages[t]));
    }
  });
}

TEST(GroupTest, WaitsForOneTensorAndNamesTheOneItSharesAChunkWith) {
  Cluster cluster;
  Workers workers(cluster, 1);
  const auto registered = workers[0].Register(Model(3), kTimeout);
  ASSERT_OK(registered);
  Group& group = **registered;
  Tree tree(group.spec());
  EXPECT_TRUE(absl::IsFailedPrecondition(group.Wait(TensorId{0}, kTimeout).status()));
  ASSERT_OK(group.Push(TensorId{0}, tree.values[0].data(), 4, tree.values[0].data()));
  ASSERT_OK(group.Skip(TensorId{2}, tree.values[2].data()));
  const absl::Status status = group.Wait(TensorId{0}, kTimeout).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"t1\""));
  const absl::Status end = group.End(kTimeout);
  EXPECT_TRUE(absl::IsFailedPrecondition(end)) << end;
  EXPECT_THAT(std::string(end.message()), HasSubstr("\"t1\""));
  EXPECT_TRUE(absl::IsFailedPrecondition(workers[0].Leave(kTimeout)));
  EXPECT_FALSE(group.IsStepAnswered());
  ASSERT_OK(group.Skip(TensorId{1}, tree.values[1].data()));
  const auto counts = group.Wait(TensorId{0}, kTimeout);
  ASSERT_OK(counts);
  EXPECT_EQ(counts->most, 1u);
  EXPECT_TRUE(group.IsStepAnswered()) << "all are in one chunk";
  ASSERT_OK(group.WaitStep(kTimeout));
  EXPECT_FALSE(group.IsStepAnswered()) << "this is the next step";
  EXPECT_OK(workers[0].Leave(kTimeout));
  EXPECT_OK(workers[0].Leave(kTimeout));
}

TEST(GroupTest, NextCompletionReturnsEachTensorOnceWhenItsResultIsThere) {
  Cluster cluster;
  Workers workers(cluster, 2);
  const GroupSpec spec{
      "model", {{"v", DType::kF32, {2}}, {"w", DType::kF32, {2}}}, Reduction::kSum, 8};
  std::vector<Group*> groups(2);
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(spec, kTimeout);
    ASSERT_OK(group);
    groups[rank] = *group;
  });
  const TensorId v{0}, w{1};
  std::vector<float> first = {1, 2}, second = {10, 20}, third = {3, 4};
  ASSERT_OK(groups[0]->Push(v, first.data(), 8, first.data()));
  // The wait begins before the other tensor is pushed.
  std::thread waiting([&] {
    const auto done = groups[0]->NextCompletion(kTimeout);
    ASSERT_OK(done);
    EXPECT_EQ(*done, w);
  });
  ASSERT_OK(groups[0]->Push(w, third.data(), 8, third.data()));
  ASSERT_OK(groups[1]->Push(w, second.data(), 8, nullptr));
  waiting.join();
  EXPECT_THAT(third, ElementsAre(13, 24));
  const absl::Status late = groups[0]->NextCompletion(absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  ASSERT_OK(groups[1]->Push(v, second.data(), 8, nullptr));
  EXPECT_EQ(groups[0]->NextCompletion(kTimeout).value_or(w), v);
  EXPECT_THAT(first, ElementsAre(11, 22));
  const absl::Status none = groups[0]->NextCompletion(kTimeout).status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  for (Group* group : groups) ASSERT_OK(group->WaitStep(kTimeout));
}

TEST(GroupTest, RefusesWhatDoesNotFit) {
  float value = 0;  // outlives the client, to which it belongs because the step does not end
  Cluster cluster;
  Workers workers(cluster, 1);
  const auto registered = workers[0].Register(Model(3), kTimeout);
  ASSERT_OK(registered);
  Group& group = **registered;
  const absl::Status length = group.Push(TensorId{1}, &value, 4, &value);
  EXPECT_TRUE(absl::IsInvalidArgument(length)) << length;
  EXPECT_THAT(std::string(length.message()), HasSubstr("\"t1\" has 4 bytes"));
  EXPECT_THAT(std::string(length.message()), HasSubstr("1204"));
  EXPECT_TRUE(absl::IsInvalidArgument(group.Push(TensorId{3}, &value, 4, &value)));
  EXPECT_TRUE(absl::IsInvalidArgument(group.Push(TensorId{0}, nullptr, 4, &value)));
  EXPECT_TRUE(absl::IsNotFound(group.Find("t3").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(group.SetWeight(0)));
  ASSERT_OK(group.Push(TensorId{0}, &value, 4, &value));
  EXPECT_TRUE(absl::IsFailedPrecondition(group.Push(TensorId{0}, &value, 4, &value)));
  EXPECT_TRUE(absl::IsFailedPrecondition(group.SetWeight(2)));
  EXPECT_TRUE(absl::IsInvalidArgument(group.Broadcast(0, {}, kTimeout)));
}

TEST(GroupTest, RefusesATensorWithTwoShapes) {
  Cluster cluster;
  Workers workers(cluster, 2);
  ASSERT_OK(workers[0].Register(Model(3), kTimeout));
  GroupSpec other = Model(3);
  other.tensors[1].shape = {301, 2};
  const absl::Status refused = workers[1].Register(other, kTimeout).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("301,2"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("t1"));
  EXPECT_OK(workers[1].Register(Model(3), kTimeout));
  // A group can be registered a second time with the same tensors, but not with others.
  EXPECT_OK(workers[1].Register(Model(3), kTimeout));
  EXPECT_TRUE(absl::IsInvalidArgument(workers[1].Register(other, kTimeout).status()));
}

TEST(GroupTest, SaysWhomItWaitsForAtTheDeadline) {
  Cluster cluster(2);
  Workers workers(cluster, 3);
  Group* groups[3];
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(Model(), kTimeout);
    ASSERT_OK(group);
    groups[rank] = *group;
  });
  std::vector<Tree> trees(3, Tree(groups[0]->spec()));
  ASSERT_OK(groups[0]->SkipAll(trees[0].pointers()));
  ASSERT_OK(groups[2]->SkipAll(trees[2].pointers()));
  const std::string why = AwaitReason({"\"w1\"", "\"t7\""},
                                      [&] { return groups[0]->WaitStep(absl::Milliseconds(500)); });
  EXPECT_THAT(why, HasSubstr("step 1 of group \"model\""));
  EXPECT_THAT(why, HasSubstr("\"w1\""));
  EXPECT_THAT(why, HasSubstr("\"t7\""));
  ASSERT_OK(groups[1]->SkipAll(trees[1].pointers()));
  for (Group* group : groups) EXPECT_OK(group->WaitStep(kTimeout));
}

TEST(GroupTest, UnevenDataEndsEqualToALoopThatAveragesOverWhoeverIsLeft) {
  constexpr uint64_t kSteps[] = {1, 10, 3};
  const auto gradient_of = [](uint32_t rank, uint64_t step, size_t i) {
    return 0.1f * rank + step + i % 3;
  };
  Cluster cluster(2);
  Workers workers(cluster, 3);
  std::vector<std::vector<float>> parameters(3, std::vector<float>(50000, 1.0f));
  workers.Run([&](uint32_t rank, Client& client) {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = {{"w", DType::kF32, {50000}}};
    spec.chunk_bytes = 16 << 10;
    const auto registered = client.Register(spec, kTimeout);
    ASSERT_OK(registered);
    Group& group = **registered;
    std::vector<float> gradient(50000);
    const uint64_t steps = kSteps[rank];
    uint64_t step = 0;
    const auto apply = [&](const Contributors& count) {
      if (count.most == 0) return;
      for (size_t i = 0; i < gradient.size(); ++i) parameters[rank][i] -= 0.1f * gradient[i];
    };
    for (step = 1; step <= steps; ++step) {
      for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient_of(rank, step, i);
      ASSERT_OK(group.Push(TensorId{0}, gradient.data(), BytesOf(gradient), gradient.data()));
      const auto counts = group.WaitStep(kTimeout);
      ASSERT_OK(counts);
      EXPECT_EQ((*counts)[0].most, step <= 1 ? 3u : step <= 3 ? 2u : 1u);
      apply((*counts)[0]);
    }
    ASSERT_OK(group.End(kTimeout));
    EXPECT_TRUE(absl::IsFailedPrecondition(
        group.Push(TensorId{0}, gradient.data(), BytesOf(gradient), gradient.data())));
    void* result = gradient.data();
    uint64_t followed = 0;
    while (true) {
      ASSERT_OK(group.SkipAll(absl::MakeConstSpan(&result, 1)));
      const auto counts = group.WaitStep(kTimeout);
      if (absl::IsOutOfRange(counts.status())) break;
      ASSERT_OK(counts);
      apply((*counts)[0]);
      ++followed;
    }
    EXPECT_EQ(followed, 10 - steps);
    EXPECT_OK(client.Leave(kTimeout));
  });
  std::vector<float> expected(50000, 1.0f);
  for (uint64_t step = 1; step <= 10; ++step) {
    for (size_t i = 0; i < expected.size(); ++i) {
      float sum = 0, count = 0;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        if (step > kSteps[rank]) continue;
        sum += gradient_of(rank, step, i);
        ++count;
      }
      expected[i] -= 0.1f * (sum / count);
    }
  }
  for (const std::vector<float>& of_worker : parameters) EXPECT_EQ(of_worker, expected);
}

TEST(GroupTest, LosesNothingOfAWorkerThatEndsWhileItsLastChunksAreOnTheWire) {
  Cluster cluster(3);
  Workers workers(cluster, 2);
  workers.Run([&](uint32_t rank, Client& client) {
    const auto registered = client.Register(Model(), kTimeout);
    ASSERT_OK(registered);
    Group& group = **registered;
    Tree tree(group.spec());
    for (uint32_t t = 0; t < tree.values.size(); ++t) {
      tree.values[t].assign(tree.values[t].size(), rank + 1.0f);
      ASSERT_OK(group.Push(TensorId{t}, tree.values[t].data(), BytesOf(tree.values[t]),
                           tree.values[t].data()));
    }
    ASSERT_OK(group.End(kTimeout));  // before the step has been waited for
    const auto counts = group.WaitStep(kTimeout);
    ASSERT_OK(counts);
    for (uint32_t t = 0; t < tree.values.size(); ++t) {
      EXPECT_EQ((*counts)[t].least, 2u);
      EXPECT_EQ(tree.values[t], std::vector<float>(tree.values[t].size(), 1.5f));
    }
    EXPECT_OK(client.Leave(kTimeout));
  });
}

TEST(GroupTest, KeepsParametersOnTheServers) {
  Cluster cluster(2);
  Workers workers(cluster, 3);
  workers.Run([&](uint32_t rank, Client& client) {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = {{"w", DType::kF32, {30000}}, {"b", DType::kF64, {3}}};
    spec.rule = Optimizer(Sgd{.learning_rate = 0.5});
    spec.chunk_bytes = 32 << 10;
    const auto registered = client.Register(spec, kTimeout);
    ASSERT_OK(registered);
    Group& group = **registered;
    std::vector<float> w(30000, rank + 1.0f);
    std::vector<double> b(3, rank + 2.0);
    const absl::Status early = group.Push(TensorId{0}, w.data(), BytesOf(w), w.data());
    EXPECT_TRUE(absl::IsFailedPrecondition(early)) << early;
    EXPECT_THAT(std::string(early.message()), HasSubstr("Group::Broadcast"));
    void* tensors[] = {w.data(), b.data()};
    EXPECT_TRUE(absl::IsInvalidArgument(group.Broadcast(3, tensors, kTimeout)));
    ASSERT_OK(group.Broadcast(1, tensors, kTimeout));
    EXPECT_EQ(w, std::vector<float>(30000, 2.0f));
    EXPECT_EQ(b, std::vector<double>(3, 3.0));
    EXPECT_EQ(group.step(), 1u);
    const std::vector<float> dw(30000, static_cast<float>(rank));
    ASSERT_OK(group.Push(TensorId{0}, dw.data(), BytesOf(dw), w.data()));
    b.assign(3, -1);  // before Skip, after which the group may write the result at any time
    ASSERT_OK(group.Skip(TensorId{1}, b.data()));
    const auto counts = group.WaitStep(kTimeout);
    ASSERT_OK(counts);
    EXPECT_EQ((*counts)[0].most, 3u);
    EXPECT_EQ((*counts)[1].most, 0u);
    EXPECT_EQ(w, std::vector<float>(30000, 1.5f));
    EXPECT_EQ(b, std::vector<double>(3, 3.0));  // unchanged, because no worker contributed
    EXPECT_TRUE(absl::IsFailedPrecondition(group.Broadcast(1, tensors, kTimeout)));
    EXPECT_OK(client.Leave(kTimeout));
  });
}

TEST(GroupTest, GoesOnWithoutAWorkerThatIsAbandonedInMidStep) {
  server::ServerOptions options;
  options.stream_grace = absl::Milliseconds(100);
  Cluster cluster(2, options);
  Workers workers(cluster, 3);
  workers.Run([&](uint32_t rank, Client& client) {
    const auto registered = client.Register(Model(), kTimeout);
    ASSERT_OK(registered);
    Group& group = **registered;
    Tree tree(group.spec());
    // The worker that dies has contributed only to the first tensors of the layout.
    const uint32_t pushed = rank == 2 ? 5 : tree.values.size();
    for (uint32_t t = 0; t < pushed; ++t) {
      tree.values[t].assign(tree.values[t].size(), rank + 1.0f);
      ASSERT_OK(group.Push(TensorId{t}, tree.values[t].data(), BytesOf(tree.values[t]),
                           tree.values[t].data()));
    }
    if (rank == 2) {
      client.Abandon();
      EXPECT_FALSE(group.WaitStep(kTimeout).ok());
      return;
    }
    const auto counts = group.WaitStep(kTimeout);
    ASSERT_OK(counts);
    for (uint32_t t = 5; t < tree.values.size(); ++t) {
      EXPECT_EQ((*counts)[t].most, 2u);
      EXPECT_EQ(tree.values[t], std::vector<float>(tree.values[t].size(), 1.5f));
    }
    EXPECT_OK(client.Leave(kTimeout));
  });
}

}  // namespace
}  // namespace syncgrads::testing
