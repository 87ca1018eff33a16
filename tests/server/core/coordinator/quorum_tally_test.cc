#include "server/core/coordinator/quorum_tally.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

constexpr MemberId a{0}, b{1}, c{2}, d{3};

class QuorumTallyTest : public ::testing::Test {
 protected:
  static QuorumTally Tally(uint32_t least, absl::Duration grace = absl::ZeroDuration()) {
    return QuorumTally({.least = least, .grace = grace}, {ServerIndex{0}, ServerIndex{1}});
  }
  static void Everywhere(QuorumTally& tally, uint64_t round, std::vector<MemberId> members) {
    for (MemberId member : members) {
      for (uint32_t server : {0, 1}) tally.Arrived(ServerIndex{server}, Round{round}, member);
    }
  }
  std::optional<std::vector<MemberId>> Decide(QuorumTally& tally,
                                              std::set<MemberId> required = {}) const {
    return tally.Decide(with_data_, required, now_);
  }

  std::vector<MemberId> with_data_ = {a, b, c, d};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(QuorumTallyTest, TakesTheFirstOnesInTheOrderOfMembers) {
  QuorumTally tally = Tally(3);
  Everywhere(tally, 1, {d, b});
  EXPECT_EQ(Decide(tally), std::nullopt);
  Everywhere(tally, 1, {a});
  EXPECT_THAT(Decide(tally), Optional(ElementsAre(a, b, d)));
}

TEST_F(QuorumTallyTest, AContributionCountsWhenItIsCompleteOnEveryServer) {
  QuorumTally tally = Tally(1);
  tally.Arrived(ServerIndex{0}, Round{1}, a);
  tally.Arrived(ServerIndex{0}, Round{1}, a);
  EXPECT_EQ(Decide(tally), std::nullopt);
  // A server without chunks of the group is not asked.
  tally.Arrived(ServerIndex{2}, Round{1}, a);
  EXPECT_EQ(Decide(tally), std::nullopt);
  tally.Arrived(ServerIndex{1}, Round{1}, a);
  EXPECT_THAT(Decide(tally), Optional(ElementsAre(a)));
}

TEST_F(QuorumTallyTest, AStepThatNobodyCanHaveReachedIsIgnored) {
  QuorumTally tally = Tally(1);
  Everywhere(tally, 1 + 1024, {a});
  Everywhere(tally, 2 + 1024, {a});
  tally.Decided(Round{1024});
  EXPECT_THAT(Decide(tally), Optional(ElementsAre(a)));
  tally.Decided(Round{1 + 1024});
  EXPECT_EQ(Decide(tally), std::nullopt);
}

TEST_F(QuorumTallyTest, WhoComesWithinTheGraceIsTakenAsWell) {
  QuorumTally tally = Tally(2, absl::Seconds(1));
  Everywhere(tally, 1, {a, b});
  EXPECT_EQ(Decide(tally), std::nullopt);
  now_ += absl::Milliseconds(900);
  Everywhere(tally, 1, {c});
  EXPECT_EQ(Decide(tally), std::nullopt) << "the grace begins with the quorum";
  now_ += absl::Milliseconds(100);
  EXPECT_THAT(Decide(tally), Optional(ElementsAre(a, b, c)));
}

TEST_F(QuorumTallyTest, WithNobodyLeftToWaitForThereIsNoGrace) {
  QuorumTally tally = Tally(2, absl::Seconds(1));
  Everywhere(tally, 1, {a, b, c, d});
  EXPECT_THAT(Decide(tally), Optional(ElementsAre(a, b, c, d)));
}

TEST_F(QuorumTallyTest, WhereFewerHaveDataItTakesAllOfThem) {
  QuorumTally tally = Tally(3);
  with_data_ = {b, d};
  Everywhere(tally, 1, {a, b});
  EXPECT_EQ(Decide(tally), std::nullopt);
  Everywhere(tally, 1, {d});
  EXPECT_THAT(Decide(tally), Optional(ElementsAre(b, d)));
  with_data_ = {};
  EXPECT_EQ(Decide(tally), std::nullopt);
}

TEST_F(QuorumTallyTest, AMemberThatIsRequiredIsWaitedFor) {
  QuorumTally tally = Tally(2);
  Everywhere(tally, 1, {a, b, c});
  EXPECT_EQ(Decide(tally, {d}), std::nullopt);
  Everywhere(tally, 1, {d});
  EXPECT_THAT(Decide(tally, {d}), Optional(ElementsAre(a, b, c, d)));
}

TEST_F(QuorumTallyTest, AStepThatIsDecidedIsOver) {
  QuorumTally tally = Tally(1);
  Everywhere(tally, 1, {a});
  ASSERT_NE(Decide(tally), std::nullopt);
  tally.Decided(Round{1});
  EXPECT_EQ(tally.next(), Round{2});
  Everywhere(tally, 1, {b});
  EXPECT_EQ(Decide(tally), std::nullopt);
  // Records of an earlier process set the next round.
  tally.Decided(Round{9});
  tally.Decided(Round{4});
  EXPECT_EQ(tally.next(), Round{10});
}

}  // namespace
}  // namespace syncgrads::server
