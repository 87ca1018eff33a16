// Groups with a quorum, in which a step does not wait for the slowest worker. Clients and servers
// run in this process.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"

namespace syncgrads::testing {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kWorkers = 3;
constexpr int64_t kElements = 64;

// A worker's parameters. They are updated on the worker or on the servers, as the group's rule
// requires.
class Replica {
 public:
  Replica(Client& client, UpdateRule rule, Quorum quorum, Compression compression = {})
      : on_servers_(rule.index() == 2) {
    GroupSpec spec{"model", {{"w", DType::kF32, {kElements}}}, std::move(rule)};
    spec.chunk_bytes = 64;  // several chunks, on both servers
    spec.policy = quorum;
    if (!(compression == Compression())) spec.compression = {compression};
    const auto group = client.Register(spec, kTimeout);
    EXPECT_OK(group);
    group_ = group.ok() ? *group : nullptr;
    if (!on_servers_) return;
    void* memory = w_.data();
    EXPECT_OK(group_->Broadcast(0, absl::MakeSpan(&memory, 1), kTimeout));
  }

  absl::Status Push(float value) {
    gradient_.assign(kElements, value);
    return group_->Push(TensorId{0}, gradient_.data(), BytesOf(gradient_), Result());
  }
  // Runs a step with a gradient of which top-k sends only a part.
  void StepUneven() {
    gradient_.resize(kElements);
    for (int64_t i = 0; i < kElements; ++i) {
      gradient_[i] = static_cast<float>((i * 37 + static_cast<int64_t>(group_->step()) * 11) % 64);
    }
    ASSERT_OK(group_->Push(TensorId{0}, gradient_.data(), BytesOf(gradient_), Result()));
    ASSERT_OK(Finish());
  }
  absl::Status Skip() { return group_->Skip(TensorId{0}, Result()); }
  absl::Status Finish() {
    const auto finished = group_->WaitStep(kTimeout);
    if (!finished.ok()) return finished.status();
    if (on_servers_ || finished->at(0).most == 0) return absl::OkStatus();
    for (int64_t i = 0; i < kElements; ++i) w_[i] = 0.5f * w_[i] - update_[i];
    return absl::OkStatus();
  }
  void Step(float value) {
    ASSERT_OK(Push(value));
    ASSERT_OK(Finish());
  }
  // Ends this worker's data and follows the others until all have ended.
  void Follow() {
    ASSERT_OK(group_->End(kTimeout));
    while (true) {
      ASSERT_OK(Skip());
      const absl::Status status = Finish();
      if (absl::IsOutOfRange(status)) return;
      ASSERT_OK(status);
    }
  }

  Group& group() { return *group_; }
  const std::vector<float>& w() const { return w_; }
  std::vector<uint32_t> LastContributors() const {
    const auto last = group_->LastStep(kTimeout);
    EXPECT_OK(last);
    return last.ok() ? last->contributors : std::vector<uint32_t>();
  }

 private:
  void* Result() { return on_servers_ ? w_.data() : update_.data(); }

  const bool on_servers_;
  Group* group_;
  std::vector<float> w_ = std::vector<float>(kElements, 0);
  std::vector<float> gradient_, update_ = std::vector<float>(kElements, 0);
};

class QuorumTest : public ::testing::Test {
 protected:
  void Start(UpdateRule rule, Quorum quorum) {
    replicas_.resize(kWorkers);
    workers_.Run([&](uint32_t rank, Client& client) {
      replicas_[rank] = std::make_unique<Replica>(client, rule, quorum);
    });
  }
  // Runs steps in which worker 2 does not take part.
  void StepWithout2(int steps) {
    workers_.Run([&](uint32_t rank, Client&) {
      for (int i = 0; rank < 2 && i < steps; ++i) replicas_[rank]->Step(static_cast<float>(rank));
    });
  }
  void FollowAll() {
    workers_.Run([&](uint32_t rank, Client&) { replicas_[rank]->Follow(); });
    for (uint32_t rank = 1; rank < kWorkers; ++rank) {
      EXPECT_EQ(replicas_[rank]->w(), replicas_[0]->w()) << "worker " << rank;
      EXPECT_EQ(replicas_[rank]->group().step(), replicas_[0]->group().step());
    }
  }

  Cluster cluster_{2};
  // Outlive the clients, to which their buffers belong after a step that has failed.
  std::vector<std::unique_ptr<Replica>> replicas_;
  Workers workers_{cluster_, kWorkers};
};

TEST_F(QuorumTest, StepsGoOnWithoutOneThatDoesNothing) {
  Start(Reduction::kAverage, {.least = 2});
  StepWithout2(5);
  EXPECT_THAT(replicas_[0]->LastContributors(), ElementsAre(0, 1));
  EXPECT_EQ(replicas_[0]->group().step(), 6u);
}

TEST_F(QuorumTest, ALateWorkerAppliesWhatItHasMissedAndIsThenOneOfThem) {
  Start(Reduction::kAverage, {.least = 2, .kept = 8});
  StepWithout2(6);
  Replica& late = *replicas_[2];
  late.Step(100);
  EXPECT_THAT(late.LastContributors(), ElementsAre(0, 1));
  EXPECT_EQ(late.group().steps_behind(), 5u);
  while (late.group().steps_behind() > 0) {
    ASSERT_OK(late.Skip());
    ASSERT_OK(late.Finish());
  }
  EXPECT_EQ(late.group().step(), 7u);
  EXPECT_EQ(late.w(), replicas_[0]->w());
  workers_.Run([&](uint32_t rank, Client&) {
    if (rank > 0) replicas_[rank]->Step(static_cast<float>(rank));
  });
  EXPECT_THAT(late.LastContributors(), ElementsAre(1, 2));
  FollowAll();
}

TEST_F(QuorumTest, OneThatIsTooLateIsTold) {
  Start(Reduction::kAverage, {.least = 2, .kept = 2});
  StepWithout2(6);
  ASSERT_OK(replicas_[2]->Push(1));
  const absl::Status status = replicas_[2]->Finish();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("no longer kept"));
}

TEST_F(QuorumTest, WithParametersOnTheServersALateWorkerTakesTheNewestAtOnce) {
  Start(Sgd{.learning_rate = 0.5}, {.least = 2});
  StepWithout2(50);
  Replica& late = *replicas_[2];
  late.Step(100);
  EXPECT_EQ(late.group().step(), 51u);
  EXPECT_EQ(late.group().steps_behind(), 0u);
  EXPECT_EQ(late.w(), replicas_[0]->w());
  EXPECT_EQ(late.w()[0], -0.5f * 50 * 0.5f);
  FollowAll();
}

// The workers are late in different steps, but all of them end with the same bits.
TEST_F(QuorumTest, ReplicasEndEqualWhoeverIsLateWhen) {
  for (const UpdateRule& rule :
       {UpdateRule(Sgd{.learning_rate = 0.01}), UpdateRule(Adam{.learning_rate = 0.01})}) {
    Cluster cluster(2);
    Workers workers(cluster, kWorkers);
    std::vector<std::unique_ptr<Replica>> replicas(kWorkers);
    workers.Run([&](uint32_t rank, Client& client) {
      replicas[rank] = std::make_unique<Replica>(client, rule, Quorum{.least = 2});
      Replica& replica = *replicas[rank];
      while (replica.group().step() <= 200) {
        const uint64_t step = replica.group().step();
        // Every tenth step one of the workers yields, so that the others may get ahead.
        if (step % 10 == 0 && step / 10 % kWorkers == rank) std::this_thread::yield();
        replica.Step(static_cast<float>(rank + step % 7));
      }
      replica.Follow();
    });
    for (uint32_t rank = 1; rank < kWorkers; ++rank) {
      EXPECT_EQ(replicas[rank]->w(), replicas[0]->w()) << "worker " << rank;
    }
  }
}

// With error feedback: a contribution that arrives too late does not change the residual. The
// residual of earlier contributions is sent with the next one.
TEST_F(QuorumTest, ALateContributionLeavesTheResidualAsItWas) {
  std::vector<std::vector<float>> last;
  for (const bool contributes_late : {false, true}) {
    Cluster cluster(2);
    Workers workers(cluster, kWorkers);
    std::vector<std::unique_ptr<Replica>> replicas(kWorkers);
    workers.Run([&](uint32_t rank, Client& client) {
      replicas[rank] = std::make_unique<Replica>(client, Reduction::kAverage, Quorum{.least = 2},
                                                 Compression{{Codec::kTopK, 0.5}, {}});
    });
    const auto step = [&](std::vector<uint32_t> of) {
      workers.Run([&](uint32_t rank, Client&) {
        if (std::find(of.begin(), of.end(), rank) != of.end()) replicas[rank]->StepUneven();
      });
    };
    step({1, 2});
    step({0});  // follows to the next step
    step({0, 1});
    Replica& late = *replicas[2];
    if (contributes_late) {
      late.StepUneven();
    } else {
      ASSERT_OK(late.Skip());
      ASSERT_OK(late.Finish());
    }
    EXPECT_THAT(late.LastContributors(), ElementsAre(0, 1));
    step({1, 2});
    EXPECT_THAT(late.LastContributors(), ElementsAre(1, 2));
    last.push_back(late.w());
  }
  EXPECT_EQ(last[0], last[1]);
}

TEST_F(QuorumTest, WithFewerThatHaveDataItWaitsForAllOfThem) {
  Start(Reduction::kAverage, {.least = 2});
  workers_.Run([&](uint32_t rank, Client&) {
    if (rank == 0) ASSERT_OK(replicas_[0]->group().End(kTimeout));
    if (rank == 1) {
      ASSERT_OK(replicas_[1]->Push(1));
      const auto wait = [&] { return replicas_[1]->group().WaitStep(absl::Milliseconds(300)); };
      EXPECT_THAT(AwaitReason({"\"w2\""}, wait), ::testing::HasSubstr("\"w2\""));
    }
  });
  workers_.Run([&](uint32_t rank, Client&) {
    if (rank == 1) ASSERT_OK(replicas_[1]->Finish());
    if (rank == 2) replicas_[2]->Step(3);
  });
  EXPECT_THAT(replicas_[1]->LastContributors(), ElementsAre(1, 2));
}

}  // namespace
}  // namespace syncgrads::testing
