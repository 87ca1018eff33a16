#include "server/core/plan_log/plan_log.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Records the sequence numbers of the changes that are sent.
class FakeLink : public ServerLink {
 public:
  void Send(const PlanChange& change) override { sent.push_back(change.sequence); }
  void Prepare(const GroupPreparation&) override {}
  std::vector<uint64_t> sent;
};

class PlanLogTest : public testing::Test {
 protected:
  absl::Status Attach(uint32_t index, uint64_t incarnation, uint64_t applied,
                      const std::shared_ptr<FakeLink>& link, uint64_t plan = kPlan) {
    return log_.Attach({ServerIndex{index}, "10.0.0." + std::to_string(index) + ":7000",
                        Incarnation{incarnation}, applied, plan},
                       link, state_lost_);
  }
  static constexpr uint64_t kPlan = 77;

  uint64_t Append() {
    PlanChange change{0, "iris", Generation{1}, EpochProposed{2}};
    log_.Number(change);
    log_.Send(change);
    return change.sequence;
  }

  PlanLog log_{3, "10.0.0.0:7000", kPlan};
  std::shared_ptr<FakeLink> own_ = std::make_shared<FakeLink>();
  std::shared_ptr<FakeLink> one_ = std::make_shared<FakeLink>();
  std::shared_ptr<FakeLink> two_ = std::make_shared<FakeLink>();
  bool state_lost_ = false;
};

TEST_F(PlanLogTest, NumbersChangesAndSendsThemToEveryServer) {
  ASSERT_THAT(Attach(1, 11, 0, one_), IsOk());
  EXPECT_FALSE(log_.complete());
  ASSERT_THAT(Attach(2, 22, 0, two_), IsOk());
  EXPECT_TRUE(log_.complete());
  EXPECT_EQ(Append(), 1u);
  EXPECT_EQ(Append(), 2u);
  EXPECT_THAT(one_->sent, ElementsAre(1, 2));
  EXPECT_THAT(two_->sent, ElementsAre(1, 2));
  EXPECT_THAT(log_.addresses(), ElementsAre("10.0.0.0:7000", "10.0.0.1:7000", "10.0.0.2:7000"));
}

TEST_F(PlanLogTest, AServerThatStartsLateIsSentEverything) {
  ASSERT_THAT(Attach(1, 11, 0, one_), IsOk());
  Append();
  Append();
  ASSERT_THAT(Attach(2, 22, 0, two_), IsOk());
  EXPECT_FALSE(state_lost_);
  EXPECT_THAT(two_->sent, ElementsAre(1, 2));
  EXPECT_EQ(log_.applied_by_all(), 0u);
}

TEST_F(PlanLogTest, KnowsWhatAllHaveApplied) {
  ASSERT_THAT(Attach(1, 11, 0, one_), IsOk());
  ASSERT_THAT(Attach(2, 22, 0, two_), IsOk());
  log_.AttachOwn(own_);
  for (int i = 0; i < 3; ++i) Append();
  EXPECT_TRUE(log_.Applied(ServerIndex{0}, own_.get(), 3));
  EXPECT_TRUE(log_.Applied(ServerIndex{1}, one_.get(), 3));
  EXPECT_EQ(log_.applied_by_all(), 0u);
  EXPECT_TRUE(log_.Applied(ServerIndex{2}, two_.get(), 2));
  EXPECT_EQ(log_.applied_by_all(), 2u);
  // Sequence numbers beyond the end of the log are capped: the server cannot have applied a change
  // that does not exist.
  EXPECT_TRUE(log_.Applied(ServerIndex{2}, two_.get(), 1000));
  EXPECT_EQ(log_.applied_by_all(), 3u);
  Append();
  EXPECT_EQ(log_.applied_by_all(), 3u);
}

TEST_F(PlanLogTest, SendsAgainFromWhereAServerWas) {
  ASSERT_THAT(Attach(1, 11, 0, one_), IsOk());
  ASSERT_THAT(Attach(2, 22, 0, two_), IsOk());
  for (int i = 0; i < 4; ++i) Append();
  log_.Applied(ServerIndex{1}, one_.get(), 1);
  log_.Detach(ServerIndex{1}, one_.get());
  Append();
  // The server had applied one more change than it had reported.
  const auto again = std::make_shared<FakeLink>();
  ASSERT_THAT(Attach(1, 11, 2, again), IsOk());
  EXPECT_FALSE(state_lost_);
  EXPECT_THAT(again->sent, ElementsAre(3, 4, 5));
}

TEST_F(PlanLogTest, SendsNothingAgainThatWasAppliedEvenIfTheServerForgets) {
  ASSERT_THAT(Attach(1, 11, 0, one_), IsOk());
  Append();
  Append();
  log_.Applied(ServerIndex{1}, one_.get(), 2);
  const auto again = std::make_shared<FakeLink>();
  ASSERT_THAT(Attach(1, 11, 0, again), IsOk());
  EXPECT_THAT(again->sent, IsEmpty());
}

TEST_F(PlanLogTest, AnotherProcessHasLostTheStateAndGetsOnlyWhatIsNew) {
  ASSERT_THAT(Attach(1, 11, 0, one_), IsOk());
  ASSERT_THAT(Attach(2, 22, 0, two_), IsOk());
  Append();
  log_.Detach(ServerIndex{1}, one_.get());
  const auto successor = std::make_shared<FakeLink>();
  ASSERT_THAT(Attach(1, 111, 0, successor), IsOk());
  EXPECT_TRUE(state_lost_);
  EXPECT_THAT(successor->sent, IsEmpty());
  Append();
  EXPECT_THAT(successor->sent, ElementsAre(2));
}

TEST_F(PlanLogTest, RefusesASecondProcessWhileTheFirstIsConnected) {
  ASSERT_THAT(Attach(1, 11, 0, one_), IsOk());
  const absl::Status refused =
      log_.Attach({ServerIndex{1}, "10.0.0.9:1", Incarnation{5}, 0}, two_, state_lost_);
  ExpectError(refused, absl::StatusCode::kAlreadyExists,
              {"server 1", "10.0.0.1:7000", "10.0.0.9:1"});
  Append();
  EXPECT_THAT(one_->sent, ElementsAre(1));
  EXPECT_THAT(two_->sent, IsEmpty());
}

TEST_F(PlanLogTest, RefusesServersThatThereAreNot) {
  ExpectError(Attach(0, 5, 0, one_), absl::StatusCode::kInvalidArgument, {"index 0", "3 servers"});
  ExpectError(Attach(3, 5, 0, one_), absl::StatusCode::kInvalidArgument, {"index 3", "3 servers"});
}

// The server's sequence numbers belong to another plan. It would regard our changes as applied.
TEST_F(PlanLogTest, AServerThatHasFollowedAnotherPlanMustForgetIt) {
  Append();
  ExpectError(Attach(1, 11, 1, one_, 78), absl::StatusCode::kDataLoss,
              {"server 1", "10.0.0.1:7000", "78", "77"});
  EXPECT_THAT(one_->sent, IsEmpty());
}

// The coordinator's state is older than the server's, so one of the two is wrong.
TEST_F(PlanLogTest, AServerThatHasAppliedMoreThanThereIsMustForgetIt) {
  Append();
  ExpectError(Attach(1, 11, 40, one_), absl::StatusCode::kDataLoss, {"40", "of 1 changes"});
}

TEST_F(PlanLogTest, ARestoredLogGoesOnWhereItWas) {
  std::vector<PlanChange> changes;
  for (uint64_t sequence : {5, 6, 7}) {
    changes.push_back({sequence, "iris", Generation{1}, EpochProposed{2}, kPlan});
  }
  PlanStart start;
  start.plan = kPlan;
  start.applied = 4;
  start.servers = {{ServerIndex{1}, "10.0.0.1:7000", Incarnation{11}}};
  log_.Restore(start, changes, {{ServerIndex{2}, "10.0.0.2:7000", Incarnation{22}}});
  EXPECT_TRUE(log_.complete());
  EXPECT_EQ(log_.applied_by_all(), 4u);
  ASSERT_THAT(Attach(1, 11, 6, one_), IsOk());
  EXPECT_FALSE(state_lost_);
  EXPECT_THAT(one_->sent, ElementsAre(7));
  ASSERT_THAT(Attach(2, 23, 0, two_), IsOk());
  EXPECT_TRUE(state_lost_) << "another incarnation has nothing of what was said before";
  EXPECT_EQ(Append(), 8u);
}

TEST_F(PlanLogTest, AServerThatHasMoreToSayThanTheRestoredLogOfItIsNoNews) {
  log_.Restore({.plan = kPlan}, {{1, "iris", Generation{1}, JobOpened{}, kPlan}}, {});
  ASSERT_THAT(Attach(1, 11, 1, one_), IsOk());
  EXPECT_FALSE(state_lost_);
  EXPECT_THAT(one_->sent, IsEmpty());
}

TEST_F(PlanLogTest, IgnoresALinkThatIsNotTheServersPresentOne) {
  ASSERT_THAT(Attach(1, 11, 0, one_), IsOk());
  const auto again = std::make_shared<FakeLink>();
  ASSERT_THAT(Attach(1, 11, 0, again), IsOk());
  Append();
  EXPECT_FALSE(log_.Applied(ServerIndex{1}, one_.get(), 1));
  log_.Detach(ServerIndex{1}, one_.get());
  Append();
  EXPECT_THAT(again->sent, ElementsAre(1, 2));
  EXPECT_EQ(log_.Absent(), "2");
}

TEST_F(PlanLogTest, CountsOnlyConnectedServersWhereAsked) {
  ASSERT_THAT(Attach(1, 11, 0, one_), IsOk());
  ASSERT_THAT(Attach(2, 22, 0, two_), IsOk());
  Append();
  log_.Applied(ServerIndex{1}, one_.get(), 1);
  EXPECT_EQ(log_.applied_by_connected(), 0u);
  log_.Detach(ServerIndex{2}, two_.get());
  EXPECT_EQ(log_.applied_by_connected(), 1u);
  EXPECT_EQ(log_.applied_by_all(), 0u);
  EXPECT_EQ(log_.Absent(), "2 (10.0.0.2:7000)");
  EXPECT_TRUE(log_.complete());
}

TEST(PlanLogOfOneServerTest, ItsServerAppliesChangesLikeAnyOther) {
  PlanLog log(1, "");
  PlanChange change{0, "iris", Generation{1}, JobOpened{}};
  log.Number(change);
  EXPECT_EQ(change.sequence, 1u);
  log.Send(change);
  EXPECT_TRUE(log.complete());
  const auto own = std::make_shared<FakeLink>();
  log.AttachOwn(own);
  EXPECT_THAT(own->sent, ElementsAre(1)) << "what was sent before";
  log.Number(change);
  log.Send(change);
  EXPECT_THAT(own->sent, ElementsAre(1, 2));
  EXPECT_FALSE(log.settled());
  EXPECT_TRUE(log.Applied(ServerIndex{0}, own.get(), 2));
  EXPECT_TRUE(log.settled());
}

}  // namespace
}  // namespace syncgrads::server
