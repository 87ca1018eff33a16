#include "server/core/rounds/reduced_round.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;

// One chunk with the tensor "w" of two elements, whose parameters are 1 and 1 after round 0. One
// member contributes.
class ReducedRoundTest : public ::testing::Test {
 protected:
  void Start(Optimizer rule, double clip_norm) {
    GroupSpec spec{"model", {{"w", DType::kF32, {2}}}, std::move(rule)};
    spec.clip_norm = clip_norm;
    plan_ = PlanOf(std::move(spec));
    writer_.emplace(*plan_, ChunkId{0}, Generation{1}, /*kept=*/2, nullptr, 0);
    round_.emplace(*plan_, ChunkId{0}, Generation{1});
    parameters_ = Write({1, 1}).slot;
  }
  WrittenResult Write(const std::vector<float>& values) {
    const Contribution contribution{.skip = false, .payload = PayloadOf(BytesOf(values))};
    const Seated seated[] = {{0, &contribution}};
    absl::StatusOr<WrittenResult> written =
        writer_->Write({.number = 4}, seated, parameters_.get());
    EXPECT_THAT(written, IsOk());
    return *std::move(written);
  }
  void Begin(uint64_t round, const std::vector<float>& gradient) {
    WrittenResult averaged = Write(gradient);
    EXPECT_TRUE(averaged.averaged_only);
    round_->Begin(Round{round}, std::move(averaged), *parameters_);
  }
  void SetNorms(uint64_t round, uint64_t epoch, double factor, std::vector<double> ratios = {}) {
    round_->SetNorms({plan_->id, Round{round}, epoch, factor, std::move(ratios)});
  }
  // Applies the norms of the last stage, and returns the new parameters.
  std::vector<float> Finish() {
    const std::optional<WrittenResult> written = round_->UseNorms(*parameters_);
    EXPECT_TRUE(written.has_value());
    const auto* values = reinterpret_cast<const float*>(written->slot->values.span().data());
    return {values, values + 2};
  }

  std::optional<GroupPlan> plan_;
  std::optional<ResultWriter> writer_;
  std::optional<ReducedRound> round_;
  std::shared_ptr<const Slot> parameters_;
};

TEST_F(ReducedRoundTest, ClosesWithTheNormsOfItsRoundAndEpoch) {
  Start(Sgd{.learning_rate = 1}, /*clip_norm=*/1);
  EXPECT_FALSE(round_->exists());
  Begin(3, {2, 4});
  EXPECT_TRUE(round_->exists());
  EXPECT_EQ(round_->Report().round, Round{3});
  EXPECT_EQ(round_->Report().epoch, 4u);
  EXPECT_EQ(round_->Report().stage, NormStage::kGradient);
  EXPECT_EQ(round_->Report().spans.at(0).change, 20);
  EXPECT_FALSE(round_->HasNorms());
  SetNorms(2, 4, 0.25);
  EXPECT_FALSE(round_->HasNorms());
  SetNorms(3, 3, 0.25);
  EXPECT_FALSE(round_->HasNorms());
  SetNorms(3, 4, 0.5);
  ASSERT_TRUE(round_->HasNorms());
  EXPECT_THAT(Finish(), ElementsAre(0, -1));
  EXPECT_FALSE(round_->exists());
  EXPECT_FALSE(round_->HasNorms());
}

TEST_F(ReducedRoundTest, UsesNormsThatWereReceivedBeforeIt) {
  Start(Sgd{.learning_rate = 1}, /*clip_norm=*/1);
  SetNorms(3, 4, 0.5);
  EXPECT_FALSE(round_->HasNorms());
  Begin(3, {2, 4});
  ASSERT_TRUE(round_->HasNorms());
  EXPECT_THAT(Finish(), ElementsAre(0, -1));
}

TEST_F(ReducedRoundTest, ClipsOnceAndReportsTheSumsOfTheSecondStage) {
  Start(Lars{.learning_rate = 1, .momentum = 0}, /*clip_norm=*/1);
  Begin(3, {2, 4});
  SetNorms(3, 4, 0.5);
  ASSERT_TRUE(round_->HasNorms());
  EXPECT_FALSE(round_->UseNorms(*parameters_).has_value());
  EXPECT_TRUE(round_->exists());
  EXPECT_EQ(round_->Report().stage, NormStage::kTensors);
  EXPECT_EQ(round_->Report().spans.at(0).values, 2);
  EXPECT_FALSE(round_->HasNorms()) << "these norms have no ratios";
  SetNorms(3, 4, 0.5, {1});
  ASSERT_TRUE(round_->HasNorms());
  EXPECT_THAT(Finish(), ElementsAre(0, -1));
}

}  // namespace
}  // namespace syncgrads::server
