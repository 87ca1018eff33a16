// How a coordinator of two servers decides which contributions count.

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CoordinatorQuorumTest : public TwoServersTest {
 protected:
  CoordinatorQuorumTest() {
    own_.arrivals().SetSink(
        [this](const Arrival& arrival) { coordinator_.Arrived(ServerIndex{0}, {arrival}); });
    other_->jobs.arrivals().SetSink(
        [this](const Arrival& arrival) { coordinator_.Arrived(ServerIndex{1}, {arrival}); });
  }

  // Starts a job with a group of two chunks, one on each server. The job is elastic if
  // `max_workers` exceeds `workers`.
  void Start(uint32_t workers, Quorum quorum, uint32_t max_workers = 0) {
    for (uint32_t rank = 0; rank < workers; ++rank) JoinOne(workers, max_workers);
    other_->Apply(coordinator_);
    GroupSpec spec = Model();
    spec.chunk_bytes = 8;
    spec.policy = quorum;
    Register(spec);
  }

  void JoinOne(uint32_t workers, uint32_t max_workers) {
    const auto rank = static_cast<uint32_t>(members_.size());
    Hello hello = NewHello("w" + std::to_string(rank), workers);
    hello.rank = rank;
    hello.max_workers = max_workers;
    members_.push_back(Join(hello));
    other_->Apply(coordinator_);
  }

  std::shared_ptr<RecordingSink> PushTo(uint32_t server, uint32_t member, uint64_t round,
                                        bool skip = false) {
    PushHeader header = HeaderTo(server, member, round);
    header.skip = skip;
    return Push(server, header, PayloadOf(std::string(skip ? 0 : 8, '\0')));
  }
  void PushAll(uint32_t member, uint64_t round) {
    for (uint32_t server : {0, 1}) PushTo(server, member, round);
  }
};

TEST_F(CoordinatorQuorumTest, AStepClosesWithOneSetOnEveryServer) {
  Start(3, {.least = 2});
  PushAll(2, 1);
  auto late = PushTo(0, 1, 1);
  PushAll(0, 1);
  EXPECT_EQ(OpenRound(0), 2u) << "server 0 knows at once";
  EXPECT_EQ(OpenRound(1), 1u);
  ASSERT_THAT(Sent<QuorumSet>(), SizeIs(1));
  EXPECT_EQ(Sent<QuorumSet>()[0].round, Round{1});
  EXPECT_THAT(Sent<QuorumSet>()[0].members,
              ElementsAre(members_[0].key->member, members_[2].key->member));
  EXPECT_THAT(late->last().header.contributors, ElementsAre(0, 2));
  other_->Apply(coordinator_);
  EXPECT_EQ(OpenRound(1), 2u);
  EXPECT_THAT(PushTo(1, 1, 1)->last().header.contributors, ElementsAre(0, 2));
}

TEST_F(CoordinatorQuorumTest, TheGraceIsOverWithATick) {
  Start(3, {.least = 2, .grace = absl::Milliseconds(200)});
  PushAll(0, 1);
  PushAll(1, 1);
  coordinator_.Tick();
  EXPECT_THAT(Sent<QuorumSet>(), IsEmpty());
  clock_.Advance(absl::Milliseconds(200));
  coordinator_.Tick();
  EXPECT_THAT(Sent<QuorumSet>(), SizeIs(1));
}

TEST_F(CoordinatorQuorumTest, MembersThatHaveEndedDoNotCount) {
  Start(3, {.least = 3});
  coordinator_.End(*members_[2].key, 2, GroupId{0}, Round{0}, true);
  other_->Apply(coordinator_);
  PushAll(0, 1);
  EXPECT_THAT(Sent<QuorumSet>(), IsEmpty());
  PushAll(1, 1);
  ASSERT_THAT(Sent<QuorumSet>(), SizeIs(1));
  EXPECT_THAT(Sent<QuorumSet>()[0].members,
              ElementsAre(members_[0].key->member, members_[1].key->member));
}

TEST_F(CoordinatorQuorumTest, AMemberThatIsDroppedIsNotWaitedFor) {
  Start(3, {.least = 3});
  PushAll(0, 1);
  PushAll(1, 1);
  clock_.Advance(absl::Seconds(31));
  for (uint32_t member : {0, 1}) coordinator_.Heartbeat(*members_[member].key);
  coordinator_.Tick();
  other_->Apply(coordinator_);  // Member 2 is dropped. An epoch without it begins.
  other_->Apply(coordinator_);
  coordinator_.Tick();
  ASSERT_THAT(Sent<QuorumSet>(), SizeIs(1));
  EXPECT_THAT(Sent<QuorumSet>()[0].members,
              ElementsAre(members_[0].key->member, members_[1].key->member));
}

// One member of the first epoch is lost in the middle of the epoch's last round, and the other one
// has ended its data. The rounds of the newcomer follow.
TEST_F(CoordinatorQuorumTest, ARoundThatNobodyHasDataForDoesNotKeepLaterOnesOpen) {
  Start(2, {.least = 1}, /*max_workers=*/3);
  for (const Joined& member : members_) coordinator_.Ready(*member.key, 2, GroupId{0});
  coordinator_.End(*members_[1].key, 3, GroupId{0}, Round{0}, true);
  other_->Apply(coordinator_);
  PushTo(1, 0, 1);
  JoinOne(2, 3);
  ASSERT_EQ(members_[2].link->Last<Epoch>().first_rounds.at(0).round, Round{2});
  coordinator_.LinkBroken(*members_[0].key, members_[0].link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Tick();
  other_->Apply(coordinator_);
  coordinator_.Ready(*members_[2].key, 4, GroupId{0});
  for (uint32_t server : {0, 1}) {
    PushTo(server, 1, 1, /*skip=*/true);
    ASSERT_EQ(OpenRound(server), 2u);
  }
  PushAll(2, 2);
  ASSERT_THAT(Sent<QuorumSet>(), SizeIs(1));
  EXPECT_EQ(Sent<QuorumSet>()[0].round, Round{2});
  EXPECT_THAT(Sent<QuorumSet>()[0].members, ElementsAre(members_[2].key->member));
}

// The other server lies about the round that it has reached. Nobody has data for those before it.
TEST_F(CoordinatorQuorumTest, RoundsWithoutEndAreNotDecidedOneByOne) {
  Start(2, {.least = 1}, /*max_workers=*/3);
  for (const Joined& member : members_) coordinator_.Ready(*member.key, 2, GroupId{0});
  other_->Apply(coordinator_);
  Hello hello = NewHello("w2", 2);
  hello.max_workers = 3;
  const Joined newcomer = Join(hello);
  ASSERT_THAT(Sent<EpochProposed>(), SizeIs(1));
  const Round far{uint64_t{1} << 62};
  coordinator_.OpenRounds(ServerIndex{1}, other_->waiting.back().sequence, {{GroupId{0}, far}});
  ASSERT_THAT(Sent<Epoch>(), SizeIs(1));
  EXPECT_EQ(FindRound(Sent<Epoch>()[0].first_rounds, GroupId{0}), far);
  for (uint32_t member : {0, 1}) {
    coordinator_.End(*members_[member].key, 3, GroupId{0}, Round{0}, true);
  }
  coordinator_.Tick();
  EXPECT_THAT(Sent<QuorumSet>(), IsEmpty());
}

TEST_F(CoordinatorQuorumTest, NoEpochBeginsWithAStepThatIsDecided) {
  Start(2, {.least = 1}, /*max_workers=*/3);
  // Two more groups are registered; all chunks of the second one are on the other server.
  GroupSpec spec = Model();
  spec.policy = Quorum{.least = 1};
  for (const char* name : {"here", "there"}) {
    spec.name = name;
    for (const Joined& member : members_) coordinator_.Register(*member.key, 2, spec);
  }
  for (const Joined& member : members_) coordinator_.Ready(*member.key, 3, GroupId{0});
  other_->Apply(coordinator_);
  PushHeader header = HeaderTo(1, 0, 1);
  header.group = GroupId{2};
  header.chunk = ChunkId{0};
  Push(1, header, PayloadOf(std::string(16, '\0')));
  coordinator_.Tick();
  ASSERT_THAT(Sent<QuorumSet>(), SizeIs(1));
  // The other server dies. When it is asked for its open rounds, it has lost the contributions.
  other_->waiting.clear();
  Hello hello = NewHello("w2", 2);
  hello.max_workers = 3;
  const Joined newcomer = Join(hello);
  ASSERT_THAT(Sent<EpochProposed>(), SizeIs(1));
  coordinator_.OpenRounds(ServerIndex{1}, other_->waiting.back().sequence,
                          {{GroupId{2}, Round{1}}});
  ASSERT_THAT(Sent<Epoch>(), SizeIs(1));
  EXPECT_EQ(FindRound(Sent<Epoch>()[0].first_rounds, GroupId{0}), Round{1});
  EXPECT_EQ(FindRound(Sent<Epoch>()[0].first_rounds, GroupId{2}), Round{2});
}

TEST_F(CoordinatorQuorumTest, AServerThatComesBackSaysAgainWhoHasArrived) {
  Start(2, {.least = 2});
  PushAll(0, 1);
  // The report of the second member's arrival is lost with the stream.
  other_->jobs.arrivals().SetSink(nullptr);
  PushAll(1, 1);
  EXPECT_THAT(Sent<QuorumSet>(), IsEmpty());
  coordinator_.DetachServer(ServerIndex{1}, other_.get());
  other_->identity.applied = other_->jobs.applied();
  ASSERT_THAT(coordinator_.AttachServer(other_->identity, other_), IsOk());
  coordinator_.Arrived(ServerIndex{1}, other_->jobs.NewestArrivals());
  EXPECT_THAT(Sent<QuorumSet>(), SizeIs(1));
}

}  // namespace
}  // namespace syncgrads::server
