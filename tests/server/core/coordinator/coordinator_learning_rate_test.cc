// The learning rate factor of a job: how it is set, and from which round on it applies.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kAborted = absl::StatusCode::kAborted;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

GroupRound First(uint64_t round) { return {GroupId{0}, Round{round}}; }

// A group whose members multiply their own learning rates.
GroupSpec ScaledByMembers() {
  GroupSpec spec{"model", {{"kernel", DType::kF32, {4}}}, Reduction::kSum, 0};
  spec.members_scale_rate = true;
  return spec;
}

class LearningRateTest : public CoordinatorTest {
 protected:
  absl::StatusOr<uint64_t> Set(double factor) {
    return coordinator_.SetLearningRate("iris", "secret", factor, "ada@host-a");
  }
};

TEST_F(LearningRateTest, AppliesFromARoundOnThatNobodyHasPushedTo) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, ScaledByMembers());
  EXPECT_EQ(b.link->Last<Epoch>().learning_rate, LearningRate());
  Push(a, 1);  // round 1 belongs to the epoch before
  const absl::StatusOr<uint64_t> epoch = Set(0.1);
  ASSERT_THAT(epoch, IsOk());
  EXPECT_EQ(*epoch, 2u);
  for (const Joined* member : {&a, &b}) {
    const Epoch sent = member->link->Last<Epoch>();
    EXPECT_EQ(sent.number, 2u);
    EXPECT_THAT(NamesOf(sent), ElementsAre("a", "b"));
    EXPECT_EQ(sent.learning_rate.factor, 0.1);
    EXPECT_THAT(sent.learning_rate.since, ElementsAre(First(2)));
    EXPECT_THAT(sent.first_rounds, ElementsAre(First(2)));
  }
  EXPECT_THAT(Journal(), HasSubstr("the learning rate factor is set to 0.1 (before: 1) by "
                                   "ada@host-a"));
  EXPECT_THAT(Journal(), HasSubstr("is 0.1 from step 2 of group \"model\" on"));
}

TEST_F(LearningRateTest, TheSameFactorAgainChangesNothing) {
  const Joined a = Join("a", 1);
  coordinator_.Register(*a.key, 1, ScaledByMembers());
  ASSERT_THAT(Set(0.5), IsOk());
  const absl::StatusOr<uint64_t> again = Set(0.5);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(*again, 2u);
  EXPECT_EQ(a.link->Last<Epoch>().number, 2u);
}

TEST_F(LearningRateTest, LaterEpochsKeepTheFactorAndItsFirstRound) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, ScaledByMembers());
  ASSERT_THAT(Set(0.5), IsOk());
  const LearningRate rate = a.link->Last<Epoch>().learning_rate;
  EXPECT_THAT(rate.since, ElementsAre(First(1)));
  Push(a, 1);
  ASSERT_THAT(coordinator_.Evict("iris", "secret", "b", "by hand"), IsOk());
  EXPECT_EQ(a.link->Last<Epoch>().number, 3u);
  EXPECT_EQ(a.link->Last<Epoch>().learning_rate, rate);
}

TEST_F(LearningRateTest, RefusesAFactorThatIsOutOfRange) {
  const Joined a = Join("a", 1);
  GroupSpec spec = ScaledByMembers();
  spec.members_scale_rate = false;
  spec.rule = Optimizer(Sgd{.learning_rate = 1e35});
  coordinator_.Register(*a.key, 1, spec);
  for (const double factor :
       {0.0, -0.1, std::nan(""), std::numeric_limits<double>::infinity(), 0.9e-6, 1.1e6}) {
    ExpectError(Set(factor).status(), kInvalid, {"must be from 1e-06 to 1e+06"});
  }
  ExpectError(Set(1e5).status(), kInvalid,
              {"a learning rate factor of 100000 for group \"model\": sgd: learning_rate is"});
  EXPECT_EQ(a.link->Count<Epoch>(), 1u);
}

TEST_F(LearningRateTest, RefusesAJobWithoutALearningRate) {
  ExpectError(Set(0.5).status(), kNotFound, {"no job \"iris\""});
  const Joined a = Join("a", 2);
  ExpectError(Set(0.5).status(), kFailed, {"has not begun"});
  const Joined b = Join("b", 2);
  ExpectError(Set(0.5).status(), kFailed, {"no group with a learning rate among its 0 groups"});
  coordinator_.Register(*a.key, 1, Model());
  ExpectError(Set(0.5).status(), kFailed, {"members_scale_rate"});
  ExpectError(coordinator_.SetLearningRate("iris", "guess", 0.5, "").status(), kDenied, {"token"});
}

TEST_F(LearningRateTest, RefusesAJobWhoseDataHasEnded) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, ScaledByMembers());
  coordinator_.End(*a.key, 2, GroupId{0}, Round{4}, /*follows=*/true);
  ASSERT_THAT(Set(0.5), IsOk());
  coordinator_.End(*b.key, 2, GroupId{0}, Round{4}, /*follows=*/true);
  ASSERT_THAT(Set(0.5), IsOk()) << "it is the present factor";
  ExpectError(Set(0.25).status(), kFailed, {"the data of job \"iris\" has ended"});
}

TEST_F(LearningRateTest, AFactorThatCannotBeStoredIsNotUsed) {
  KeptRecords store;
  coordinator_.Restore(store, {}, {});
  const Joined a = Join("a", 1);
  coordinator_.Register(*a.key, 1, ScaledByMembers());
  store.full = true;
  ExpectError(Set(0.5).status(), kExhausted, {"the disk is full"});
  store.full = false;
  EXPECT_EQ(a.link->Count<Epoch>(), 1u);
  ASSERT_THAT(Set(0.25), IsOk());
  EXPECT_EQ(a.link->Last<Epoch>().learning_rate.factor, 0.25);
}

class TwoServersLearningRateTest : public TwoServersTest {
 protected:
  void Begin() {
    members_ = {Join("a", 1)};
    other_->Apply(coordinator_);
    GroupSpec spec = ScaledByMembers();
    spec.chunk_bytes = 8;
    Register(spec);
  }
  const FakeMember& member() const { return *members_[0].link; }
};

TEST_F(TwoServersLearningRateTest, TheLastFactorCountsThatWasSetBeforeTheEpoch) {
  Begin();
  for (const double factor : {0.5, 0.25}) {
    const auto epoch = coordinator_.SetLearningRate("iris", "secret", factor, "");
    ASSERT_THAT(epoch, IsOk());
    EXPECT_EQ(*epoch, 2u);
  }
  EXPECT_EQ(Sent<EpochProposed>().size(), 1u);
  other_->Apply(coordinator_);
  EXPECT_EQ(member().Last<Epoch>().number, 2u);
  EXPECT_EQ(member().Last<Epoch>().learning_rate.factor, 0.25);
}

TEST_F(TwoServersLearningRateTest, AMemberIsAnsweredWhenEveryServerHasTheFactor) {
  Begin();
  const size_t before = member().Count<Done>();
  coordinator_.SetLearningRate(*members_[0].key, 7, 0.5);
  other_->ApplyOne(coordinator_);  // the proposal
  EXPECT_EQ(Sent<Epoch>().size(), 1u);
  EXPECT_EQ(member().Count<Done>(), before);
  other_->Apply(coordinator_);
  EXPECT_EQ(member().Last<Done>(), (Done{7}));
  // A retry after the answer was lost.
  coordinator_.SetLearningRate(*members_[0].key, 7, 0.5);
  EXPECT_EQ(member().Count<Done>(), before + 2);
  coordinator_.SetLearningRate(*members_[0].key, 8, 0);
  EXPECT_EQ(member().Last<Refused>().request, 8u);
  EXPECT_EQ(member().Last<Refused>().error.code(), kInvalid);
}

TEST_F(TwoServersLearningRateTest, OfTwoRequestsOfAMemberTheLastOneIsCarriedOut) {
  Begin();
  coordinator_.SetLearningRate(*members_[0].key, 7, 0.5);
  coordinator_.SetLearningRate(*members_[0].key, 8, 0.25);
  EXPECT_EQ(member().Last<Refused>().request, 7u);
  EXPECT_EQ(member().Last<Refused>().error.code(), kAborted);
  other_->Apply(coordinator_);
  EXPECT_EQ(member().Last<Done>(), (Done{8}));
  EXPECT_EQ(member().Last<Epoch>().learning_rate.factor, 0.25);
}

}  // namespace
}  // namespace syncgrads::server
