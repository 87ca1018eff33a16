// How a coordinator of two servers combines the norms of a step.

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CoordinatorNormsTest : public TwoServersTest {
 protected:
  CoordinatorNormsTest() {
    // The sums of server 0's chunks are queued until Hear, so that the test decides when the
    // coordinator receives them. The sums of the other server are delivered at once.
    own_.reduced().SetSink([this](const ReducedChunk& chunk) { told_.push_back(chunk); });
    other_->jobs.reduced().SetSink(
        [this](const ReducedChunk& chunk) { coordinator_.Reduced(ServerIndex{1}, {chunk}); });
  }

  // Starts a job with a group of two chunks with two numbers each, one chunk on each server. The
  // parameters are 0, the optimizer is SGD with the learning rate 1, and gradients are clipped to a
  // norm of 1.
  void Start(uint32_t workers, Policy policy = Sync{}) {
    for (uint32_t rank = 0; rank < workers; ++rank) {
      members_.push_back(Join("w" + std::to_string(rank), workers, rank));
    }
    other_->Apply(coordinator_);
    GroupSpec spec = Model();
    spec.chunk_bytes = 8;
    spec.rule = Optimizer(Sgd{.learning_rate = 1});
    spec.clip_norm = 1;
    spec.policy = std::move(policy);
    Register(spec);
    for (uint32_t rank = 0; rank < workers; ++rank) PushAll(rank, 0, 0);
  }

  std::shared_ptr<RecordingSink> PushTo(uint32_t server, uint32_t member, uint64_t round,
                                        float value) {
    PushHeader header = HeaderTo(server, member, round);
    header.epoch = 1;
    return Push(server, header, PayloadOf(BytesOf<float>({value, value})));
  }
  void PushAll(uint32_t member, uint64_t round, float value) {
    for (uint32_t server : {0, 1}) PushTo(server, member, round, value);
  }
  // Delivers the queued sums of server 0 to the coordinator.
  void Hear() {
    while (!told_.empty()) coordinator_.Reduced(ServerIndex{0}, std::exchange(told_, {}));
  }

  std::vector<ReducedChunk> told_;
};

TEST_F(CoordinatorNormsTest, AStepIsClippedByTheNormOfBothServersParts) {
  Start(1);
  const auto here = PushTo(0, 0, 1, 2);
  Hear();
  EXPECT_EQ(OpenRound(0), 1u);
  EXPECT_EQ(here->count(), 0u);
  const auto there = PushTo(1, 0, 1, 2);
  ASSERT_THAT(Sent<StepNorms>(), SizeIs(1));
  EXPECT_EQ(Sent<StepNorms>()[0].gradient_factor, 0.25);
  EXPECT_EQ(OpenRound(0), 2u) << "server 0 knows at once";
  EXPECT_EQ(OpenRound(1), 1u);
  other_->Apply(coordinator_);
  EXPECT_EQ(OpenRound(1), 2u);
  EXPECT_THAT(here->values<float>(), ElementsAre(-0.5f, -0.5f));
  EXPECT_THAT(there->values<float>(), ElementsAre(-0.5f, -0.5f));
}

TEST_F(CoordinatorNormsTest, AWaitSaysThatNormsAreMissing) {
  Start(1);
  PushTo(1, 0, 1, 2);
  const std::vector<RoundWait> waits = other_->jobs.Find("iris")->Explain(std::nullopt);
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_THAT(waits[0].held_for, HasSubstr("norms"));
}

TEST_F(CoordinatorNormsTest, AServerThatComesBackSaysAgainWhatItWaitsFor) {
  Start(1);
  PushTo(1, 0, 1, 2);
  coordinator_.DetachServer(ServerIndex{1}, other_.get());
  PushTo(0, 0, 1, 2);
  Hear();
  EXPECT_EQ(OpenRound(0), 1u) << "its part may be another when it is back";
  other_->identity.applied = other_->jobs.applied();
  ASSERT_THAT(coordinator_.AttachServer(other_->identity, other_), IsOk());
  coordinator_.Reduced(ServerIndex{1}, other_->jobs.Reduced());
  EXPECT_EQ(OpenRound(0), 2u);
  EXPECT_THAT(Sent<StepNorms>(), SizeIs(1));
}

TEST_F(CoordinatorNormsTest, ADroppedMembersPartOfAStepStandsWhereItHadArrived) {
  Start(2);
  PushAll(0, 1, 2);
  PushTo(0, 1, 1, 4);
  Hear();
  clock_.Advance(absl::Seconds(31));
  coordinator_.Heartbeat(*members_[0].key);
  coordinator_.Tick();
  other_->Apply(coordinator_);  // Member 1 is dropped. An epoch without it begins.
  other_->Apply(coordinator_);
  Hear();
  // The average is 3 on server 0 and 2 on server 1.
  other_->Apply(coordinator_);
  EXPECT_EQ(OpenRound(0), 2u);
  EXPECT_EQ(OpenRound(1), 2u);
  const float factor = static_cast<float>(1 / std::sqrt(2 * 9.0 + 2 * 4.0));
  EXPECT_THAT(PushTo(0, 0, 1, 2)->values<float>(), ElementsAre(-3 * factor, -3 * factor));
  EXPECT_THAT(PushTo(1, 0, 1, 2)->values<float>(), ElementsAre(-2 * factor, -2 * factor));
}

TEST_F(CoordinatorNormsTest, AQuorumsNormIsOfItsMembersAlone) {
  Start(2, Quorum{.least = 1});
  // Arrivals of the same step reach the coordinator at once, so that it may fix the set and compute
  // the norms in one call.
  own_.arrivals().SetSink(
      [this](const Arrival& arrival) { coordinator_.Arrived(ServerIndex{0}, {arrival}); });
  other_->jobs.arrivals().SetSink(
      [this](const Arrival& arrival) { coordinator_.Arrived(ServerIndex{1}, {arrival}); });
  PushTo(0, 1, 1, 100);
  PushAll(0, 1, 2);
  other_->Apply(coordinator_);
  Hear();
  other_->Apply(coordinator_);
  EXPECT_EQ(OpenRound(0), 2u);
  EXPECT_EQ(OpenRound(1), 2u);
  EXPECT_THAT(PushTo(0, 0, 1, 2)->values<float>(), ElementsAre(-0.5f, -0.5f));
}

}  // namespace
}  // namespace syncgrads::server
