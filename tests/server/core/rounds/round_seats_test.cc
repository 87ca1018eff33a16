#include "server/core/rounds/round_seats.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Three members of a group with tensors "a" and "b" of two elements each, in one chunk.
class RoundSeatsTest : public ::testing::Test {
 protected:
  explicit RoundSeatsTest(OnBad non_finite = OnBad::kReject) {
    GroupSpec spec{"model", {{"a", DType::kF32, {2}}, {"b", DType::kF32, {2}}}};
    spec.non_finite = non_finite;
    plan_ = std::make_unique<GroupPlan>(PlanOf(std::move(spec)));
    seats_ = std::make_unique<RoundSeats>(*plan_, ChunkId{0}, answer_, clock_);
    for (int i = 0; i < 3; ++i) sinks_.push_back(std::make_shared<RecordingSink>());
  }
  bool Push(uint32_t member, const std::vector<float>& values) {
    return seats_->Take(PushOf(member, 1), PayloadOf(BytesOf(values)), sinks_[member]);
  }
  bool Skip(uint32_t member) {
    return seats_->Take(SkipOf(member, 1), PayloadOf(""), sinks_[member]);
  }
  void Refuse(const std::string& error) {
    AnswerOutbox outbox;
    seats_->AnswerAll(answer_.Refusal(Round{1}, absl::AbortedError(error)), outbox);
    outbox.Send();
  }
  // Searches all contributions, as for a round whose average is not finite.
  void SetAsideNonFinite() {
    std::vector<Seated> all;
    for (const auto& [member, seat] : seats_->taken()) {
      all.push_back({ToNumber(member), &seat.contribution});
    }
    AnswerOutbox outbox;
    seats_->SetAsideNonFinite(Round{1}, EpochOfSize(3), all, alerts_, outbox);
    outbox.Send();
  }

  FakeClock clock_;
  std::unique_ptr<GroupPlan> plan_;
  const ChunkAnswers answer_{Generation{1}, GroupId{}, ChunkId{0}};
  GradientAlerts alerts_;
  std::unique_ptr<RoundSeats> seats_;
  std::vector<std::shared_ptr<RecordingSink>> sinks_;
};

TEST_F(RoundSeatsTest, AnswersEachSeatOnceAndFreesIt) {
  EXPECT_TRUE(Push(0, {1, 2, 3, 4}));
  EXPECT_TRUE(Skip(2));
  EXPECT_TRUE(seats_->Has(MemberId{0}));
  EXPECT_FALSE(seats_->Has(MemberId{1}));
  Refuse("given up");
  EXPECT_TRUE(seats_->empty());
  Refuse("given up again");
  EXPECT_EQ(sinks_[0]->count(), 1u);
  EXPECT_EQ(sinks_[1]->count(), 0u);
  EXPECT_EQ(sinks_[2]->count(), 1u);
}

TEST_F(RoundSeatsTest, ARetryKeepsTheFirstContributionAndIsAnsweredOnBothStreams) {
  EXPECT_TRUE(Skip(0));
  const auto earlier = sinks_[0];
  sinks_[0] = std::make_shared<RecordingSink>();
  EXPECT_FALSE(Push(0, {1, 2, 3, 4}));
  EXPECT_TRUE(seats_->taken().at(MemberId{0}).contribution.skip);
  Refuse("given up");
  EXPECT_EQ(earlier->count(), 1u);
  EXPECT_EQ(sinks_[0]->count(), 1u);
}

TEST_F(RoundSeatsTest, ASkipHasNoValues) {
  EXPECT_FALSE(seats_->AnyValues());
  Skip(0);
  EXPECT_FALSE(seats_->AnyValues());
  Push(1, {1, 2, 3, 4});
  EXPECT_TRUE(seats_->AnyValues());
}

TEST_F(RoundSeatsTest, WaitSinceTheFirstSeatOfTheirRound) {
  const absl::Time first = clock_.Now();
  Skip(0);
  clock_.Advance(absl::Seconds(5));
  Skip(1);
  EXPECT_EQ(seats_->since(), first);
  Refuse("given up");
  Skip(1);
  EXPECT_EQ(seats_->since(), first + absl::Seconds(5));
}

TEST_F(RoundSeatsTest, CheckRefusesTheSeatsWithAnErrorOnly) {
  for (uint32_t member : {0, 1, 2}) Skip(member);
  AnswerOutbox outbox;
  seats_->Check(
      Round{1},
      [](MemberId member, const RoundSeats::Seat& seat) {
        EXPECT_EQ(seat.made_in, 1u);
        return member == MemberId{1} ? absl::AbortedError("outsider") : absl::OkStatus();
      },
      outbox);
  outbox.Send();
  EXPECT_TRUE(seats_->Has(MemberId{0}));
  EXPECT_FALSE(seats_->Has(MemberId{1}));
  EXPECT_TRUE(seats_->Has(MemberId{2}));
  EXPECT_EQ(sinks_[0]->count(), 0u);
  ExpectError(sinks_[1]->error(), absl::StatusCode::kAborted, {"outsider"});
  EXPECT_EQ(sinks_[1]->last().header.epoch, 1u) << "the epoch that the push was made in";
}

TEST_F(RoundSeatsTest, RefusesAContributionThatIsNotFinite) {
  Push(0, {1, 2, 3, 4});
  Push(1, {1, 2, kNaN, 4});
  Skip(2);
  SetAsideNonFinite();
  EXPECT_FALSE(seats_->Has(MemberId{1}));
  EXPECT_TRUE(seats_->Has(MemberId{0}));
  EXPECT_TRUE(seats_->Has(MemberId{2}));
  ExpectError(sinks_[1]->error(), absl::StatusCode::kInvalidArgument, {"\"b\"", "\"w1\"", "nan"});
  EXPECT_THAT(alerts_.Take().lines, ElementsAre(HasSubstr("it is refused")));
}

TEST_F(RoundSeatsTest, WarnsIfFiniteContributionsAreTooLargeTogether) {
  Push(0, {1, 2, 3, 4});
  SetAsideNonFinite();
  EXPECT_TRUE(seats_->Has(MemberId{0}));
  EXPECT_THAT(alerts_.Take().lines, ElementsAre(HasSubstr("too large")));
}

class SkippingRoundSeatsTest : public RoundSeatsTest {
 protected:
  SkippingRoundSeatsTest() : RoundSeatsTest(OnBad::kSkip) {}
};

TEST_F(SkippingRoundSeatsTest, LeaveOutSpansThatAreNotFiniteAndListThemInTheAnswer) {
  Push(0, {1, 2, 3, 4});
  Push(1, {1, 2, kNaN, 4});
  SetAsideNonFinite();
  EXPECT_THAT(seats_->taken().at(MemberId{1}).contribution.absent_spans, ElementsAre(1));
  EXPECT_THAT(seats_->taken().at(MemberId{0}).contribution.absent_spans, IsEmpty());

  SlotPool pool({.value_bytes = 16});
  const std::shared_ptr<Slot> slot = *pool.Acquire();
  const RoundRecord record{
      .generation = Generation{1}, .round = Round{1}, .epoch = 1, .counts = {2, 1}};
  AnswerOutbox outbox;
  seats_->AnswerLeftOut(record, slot, outbox);
  outbox.Send();
  EXPECT_EQ(sinks_[0]->count(), 0u) << "AnswerAll answers it";
  EXPECT_THAT(sinks_[1]->last().header.left_out, ElementsAre(1));
  EXPECT_THAT(sinks_[1]->last().header.counts, ElementsAre(2, 1));
  EXPECT_FALSE(seats_->Has(MemberId{1}));
  EXPECT_TRUE(seats_->Has(MemberId{0}));
}

}  // namespace
}  // namespace syncgrads::server
