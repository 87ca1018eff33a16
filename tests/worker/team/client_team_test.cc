// A team of real clients, one of which gives up while the others continue. The servers run in this
// process, and each worker has its own client.

#include "worker/team/client_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/testing/cluster.h"
#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr uint32_t kWorkers = 2;

class ClientTeamTest : public ::testing::Test {
 protected:
  ClientTeamTest() : cluster_(1, Options()) {
    std::vector<std::thread> threads;
    clients_.reserve(kWorkers);
    teams_.reserve(kWorkers);
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      ClientOptions options;
      options.coordinator = cluster_.coordinator();
      options.job = "give up";
      options.rank = rank;
      options.world_size = kWorkers;
      options.max_workers = kWorkers;
      options.min_workers = 1;
      clients_.push_back(std::make_unique<Client>(options));
      teams_.push_back(std::make_unique<ClientTeam>(*clients_.back(), kTimeout));
      threads.emplace_back([this, rank] {
        SYNCGRADS_ASSERT_OK(clients_[rank]->Join(kTimeout));
        GroupSpec spec;
        spec.name = "model";
        spec.tensors = {{"w", DType::kF32, {1000}}};
        const auto group = teams_[rank]->Register(spec);
        SYNCGRADS_ASSERT_OK(group);
        groups_[rank] = *group;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static server::ServerOptions Options() {
    server::ServerOptions options;
    options.stream_grace = absl::Milliseconds(100);
    return options;
  }
  absl::Status Push(uint32_t worker, std::vector<float>& values) {
    return groups_[worker]->Push(TensorId{0}, values.data(), values.size() * sizeof(float),
                                 values.data());
  }

  testing::Cluster cluster_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<ClientTeam>> teams_;
  std::vector<Group*> groups_ = std::vector<Group*>(kWorkers);
};

TEST_F(ClientTeamTest, MemoryForGradientsIsUsedAgain) {
  ClientTeam& team = *teams_[0];
  const auto allocate = [&team](size_t floats) {
    const auto memory = team.AllocateGradients(floats * sizeof(float));
    EXPECT_TRUE(memory.ok()) << memory.status();
    return static_cast<float*>(*memory);
  };
  float* const first = allocate(1000);
  first[999] = 7;
  float* const second = allocate(1000);
  EXPECT_NE(second, first);
  team.ReleaseGradients(first);
  EXPECT_NE(allocate(2000), first) << "it is too small";
  EXPECT_EQ(allocate(1000), first);
  EXPECT_EQ(first[999], 0);
}

TEST_F(ClientTeamTest, AnAllReduceGoesOnInTheBackground) {
  double first = 1, second = 2;
  auto of_first = teams_[0]->StartAllReduce("sum", absl::MakeSpan(&first, 1), Reduction::kSum);
  SYNCGRADS_ASSERT_OK(of_first);
  auto of_second = teams_[1]->StartAllReduce("sum", absl::MakeSpan(&second, 1), Reduction::kSum);
  SYNCGRADS_ASSERT_OK(of_second);
  EXPECT_EQ(*(*of_first)(), 2u);
  EXPECT_EQ(*(*of_second)(), 2u);
  EXPECT_EQ(first, 3);
  EXPECT_EQ(second, 3);
}

TEST(GatherTest, IsRefusedIfTheLengthCannotBeRightOrIsTooLarge) {
  EXPECT_EQ(CheckGather("names", -1, 0, 2).code(), absl::StatusCode::kDataLoss);
  const absl::Status shorter = CheckGather("names", 3, 4, 2);
  EXPECT_EQ(shorter.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(shorter.message()),
              AllOf(HasSubstr("names"), HasSubstr("3 bytes"), HasSubstr("has 4")));
  SYNCGRADS_EXPECT_OK(CheckGather("names", 4, 4, 2));
  constexpr int64_t kHalf = int64_t{kMostGathered / 2};
  SYNCGRADS_EXPECT_OK(CheckGather("names", kHalf, 4, 2));
  EXPECT_EQ(CheckGather("names", kHalf + 1, 4, 2).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTeamTest, AMemberThatAnnouncesTooMuchEndsTheGatherOfTheOthers) {
  int64_t lie = int64_t{1} << 40;
  std::thread liar([this, &lie] {
    const Array array = MutableArrayOf(absl::MakeSpan(&lie, 1));
    clients_[1]->AllReduce("names/length", array, array, Reduction::kMax, kTimeout).IgnoreError();
  });
  const auto gathered = teams_[0]->Gather("names", "ada");
  liar.join();
  EXPECT_EQ(gathered.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(gathered.status().message()),
              AllOf(HasSubstr("names"), HasSubstr("1099511627776")));
}

TEST_F(ClientTeamTest, WhoLetsGoInTheMiddleOfAStepHasItsMemoryBack) {
  std::vector<float> given_up(1000, 1), other(1000, 2);
  SYNCGRADS_ASSERT_OK(Push(0, given_up));
  teams_[0]->Leave();
  const std::vector<float> reused(1000, 7);
  given_up = reused;
  SYNCGRADS_ASSERT_OK(Push(1, other));
  SYNCGRADS_EXPECT_OK(groups_[1]->WaitStep(kTimeout));
  EXPECT_EQ(given_up, reused);
}

TEST_F(ClientTeamTest, BetweenStepsItLeavesInOrder) {
  teams_[0]->Leave();
  EXPECT_THAT(cluster_.journal().WaitForLine({"leaves"}, kTimeout), HasSubstr("worker-0"));
  SYNCGRADS_EXPECT_OK(clients_[0]->Leave(kTimeout));  // has left already
}

}  // namespace
}  // namespace syncgrads
