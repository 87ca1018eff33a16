#include "server/core/rounds/result_writer.h"

#include <limits>
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

// One chunk with the tensor "w" of two elements.
class ResultWriterTest : public ::testing::Test {
 protected:
  void Start(UpdateRule rule, double clip_norm = 0) {
    GroupSpec spec{"model", {{"w", DType::kF32, {2}}}, std::move(rule)};
    spec.clip_norm = clip_norm;
    plan_ = PlanOf(std::move(spec));
    writer_.emplace(*plan_, ChunkId{0}, Generation{7}, /*kept=*/2, nullptr, 0);
  }
  // Adds a contribution of the next rank.
  void Add(const std::vector<float>& values) {
    contributions_.push_back(std::make_unique<Contribution>(
        Contribution{.skip = false, .payload = PayloadOf(BytesOf(values))}));
  }
  void AddSkip() { contributions_.push_back(std::make_unique<Contribution>()); }
  std::vector<Seated> All() const {
    std::vector<Seated> all;
    for (uint32_t rank = 0; rank < contributions_.size(); ++rank) {
      all.push_back({rank, contributions_[rank].get()});
    }
    return all;
  }
  static std::vector<float> ValuesIn(const Slot& slot) {
    const auto* values = reinterpret_cast<const float*>(slot.values.span().data());
    return {values, values + 2};
  }

  std::optional<GroupPlan> plan_;
  std::optional<ResultWriter> writer_;
  std::vector<std::unique_ptr<Contribution>> contributions_;
};

TEST_F(ResultWriterTest, TheRecordNamesTheRoundItsEpochAndTheContributors) {
  Start(Reduction::kSum);
  Add({1, 2});
  AddSkip();
  Add({3, 4});
  absl::StatusOr<WrittenResult> written = writer_->Write({.number = 5}, All(), nullptr);
  ASSERT_THAT(written, IsOk());
  EXPECT_FALSE(written->averaged_only);
  EXPECT_THAT(ValuesIn(*written->slot), ElementsAre(4, 6));
  const RoundRecord record = writer_->PublishResult(Round{9}, *written);
  EXPECT_EQ(record.generation, Generation{7});
  EXPECT_EQ(record.round, Round{9});
  EXPECT_EQ(record.epoch, 5u);
  EXPECT_EQ(record.value_bytes, 2 * sizeof(float));
  EXPECT_THAT(record.counts, ElementsAre(2));
  EXPECT_THAT(record.contributors, ElementsAre(0, 2));
}

TEST_F(ResultWriterTest, RoundZeroOfAnOptimizerNeedsTheInitialParameters) {
  Start(Sgd{.learning_rate = 1});
  AddSkip();
  ExpectError(writer_->Write({.number = 1}, All(), nullptr), absl::StatusCode::kFailedPrecondition,
              {"initial parameters", "\"model\"", "broadcast"});
  Add({1, 2});
  const absl::StatusOr<WrittenResult> written = writer_->Write({.number = 1}, All(), nullptr);
  ASSERT_THAT(written, IsOk());
  EXPECT_THAT(ValuesIn(*written->slot), ElementsAre(1, 2));
}

TEST_F(ResultWriterTest, ARoundThatNeedsNormsIsOnlyAveraged) {
  Start(Sgd{.learning_rate = 1}, /*clip_norm=*/1);
  Add({1, 1});
  const absl::StatusOr<WrittenResult> first = writer_->Write({.number = 1}, All(), nullptr);
  ASSERT_THAT(first, IsOk());
  EXPECT_FALSE(first->averaged_only) << "round 0 has parameters, not gradients";
  Add({3, 5});
  const absl::StatusOr<WrittenResult> second =
      writer_->Write({.number = 1}, All(), first->slot.get());
  ASSERT_THAT(second, IsOk());
  EXPECT_TRUE(second->averaged_only);
  EXPECT_THAT(ValuesIn(*second->slot), ElementsAre(2, 3));
}

TEST_F(ResultWriterTest, WritesAgainToTheSameSlotWithoutWhatIsNotFinite) {
  Start(Reduction::kAverage);
  Add({1, 2});
  Add({std::numeric_limits<float>::quiet_NaN(), 2});
  absl::StatusOr<WrittenResult> written = writer_->Write({.number = 1}, All(), nullptr);
  ASSERT_THAT(written, IsOk());
  EXPECT_FALSE(written->closed.finite);
  const Slot* const slot = written->slot.get();
  contributions_.pop_back();
  ASSERT_THAT(writer_->WriteAgain(All(), nullptr, *written), IsOk());
  EXPECT_TRUE(written->closed.finite);
  EXPECT_EQ(written->slot.get(), slot);
  EXPECT_THAT(ValuesIn(*slot), ElementsAre(1, 2));
  EXPECT_THAT(written->closed.contributors, ElementsAre(0));
}

}  // namespace
}  // namespace syncgrads::server
