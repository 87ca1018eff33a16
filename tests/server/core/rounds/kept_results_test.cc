#include "server/core/rounds/kept_results.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The kept results of a chunk with one element, and a job of three members. The value of a round is
// ten times its number.
class KeptResultsTest : public ::testing::Test {
 protected:
  KeptResultsTest() { roster_.Add(EpochOfSize(3)); }

  void Start(Policy policy = Sync{}, UpdateRule rule = Reduction::kSum) {
    plan_ = OneTensor(DType::kF64, 1, std::move(rule));
    plan_->spec.policy = std::move(policy);
    policy_ = MakeRoundPolicy(plan_->spec);
    kept_.emplace(*plan_, answer_, *policy_);
  }
  void Close(uint64_t round) {
    kept_->MakeRoom();
    const RoundRecord record = RecordOf(round);
    kept_->Add(answer_.Result(record, SlotOf(round), Round{round}), record, roster_);
  }
  static RoundRecord RecordOf(uint64_t round) {
    RoundRecord record;
    record.generation = Generation{1};
    record.round = Round{round};
    record.epoch = 1;
    record.value_bytes = sizeof(double);
    record.counts = {1};
    return record;
  }
  std::shared_ptr<const Slot> SlotOf(uint64_t round) {
    std::shared_ptr<Slot> slot = *pool_.Acquire();
    const double value = 10.0 * static_cast<double>(round);
    std::memcpy(slot->values.data(), &value, sizeof value);
    return slot;
  }
  // Pushes to a closed round, and returns the answer.
  Answered Ask(uint64_t round, uint64_t open, uint32_t member = 0) {
    auto sink = std::make_shared<RecordingSink>();
    AnswerOutbox outbox;
    kept_->Answer(SkipOf(member, round), Round{open}, sink, outbox);
    EXPECT_EQ(sink->count(), 0u);
    outbox.Send();
    return sink->last();
  }
  double ValueOf(const Answered& answer) { return ValuesOf<double>(answer.payload).at(0); }
  void Follow(uint32_t member, uint64_t last_round) {
    roster_.End({MemberId{member}, plan_->id, Round{last_round}, /*follows=*/true});
  }

  std::optional<GroupPlan> plan_;
  const ChunkAnswers answer_{Generation{1}, GroupId{}, ChunkId{0}};
  Roster roster_;
  SlotPool pool_{{.value_bytes = sizeof(double)}};
  std::unique_ptr<RoundPolicy> policy_;
  std::optional<KeptResults> kept_;
};

TEST_F(KeptResultsTest, KeepOneResultIfAllMembersHaveReceivedTheOneBefore) {
  Start();
  EXPECT_EQ(kept_->newest_slot(), nullptr);
  EXPECT_EQ(kept_->newest_round(), std::nullopt);
  Close(1);
  Close(2);
  EXPECT_EQ(kept_->newest_round(), Round{2});
  EXPECT_EQ(kept_->Find(Round{1}), nullptr);
  EXPECT_EQ(kept_->Find(Round{2})->slot.get(), kept_->newest_slot());
  EXPECT_EQ(ValueOf(Ask(2, 3)), 20);
  ExpectError(Ask(1, 3).header.error, absl::StatusCode::kFailedPrecondition,
              {"round 1", "no longer kept", "round 3 is open", "rejoin"});
}

TEST_F(KeptResultsTest, KeepTwoResultsForAFollower) {
  Start();
  Follow(2, 0);
  for (uint64_t round : {1, 2, 3}) Close(round);
  EXPECT_EQ(ValueOf(Ask(2, 4, 2)), 20);
  EXPECT_EQ(Ask(2, 4, 2).header.newest_round, Round{}) << "no member is left behind";
  EXPECT_EQ(ValueOf(Ask(3, 4, 2)), 30);
  EXPECT_EQ(kept_->Find(Round{1}), nullptr);
}

TEST_F(KeptResultsTest, AFollowerIsBehindUntilItRequestsTheResultThatWouldBeDropped) {
  Start();
  Follow(2, 0);
  Close(1);
  EXPECT_THAT(kept_->Behind(Round{2}, roster_), ElementsAre(MemberId{2}));
  kept_->Request(MemberId{2}, Round{1});
  EXPECT_THAT(kept_->Behind(Round{2}, roster_), IsEmpty());
  Close(2);
  EXPECT_THAT(kept_->Behind(Round{3}, roster_), ElementsAre(MemberId{2}));
  kept_->Request(MemberId{2}, Round{3});
  kept_->Request(MemberId{2}, Round{1});
  EXPECT_THAT(kept_->Behind(Round{3}, roster_), IsEmpty()) << "an older request changes nothing";
  kept_->Forget([](MemberId member) { return member == MemberId{2}; });
  EXPECT_THAT(kept_->Behind(Round{3}, roster_), ElementsAre(MemberId{2}));
}

TEST_F(KeptResultsTest, AMemberThatIsLeftBehindLearnsTheNewestRound) {
  Start(Quorum{.least = 2, .kept = 3});
  for (uint64_t round : {1, 2, 3, 4}) Close(round);
  EXPECT_EQ(ValueOf(Ask(2, 5)), 20);
  EXPECT_EQ(Ask(2, 5).header.newest_round, Round{4});
  EXPECT_EQ(Ask(4, 5).header.newest_round, Round{});
  EXPECT_EQ(Ask(1, 5).header.error.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(KeptResultsTest, TheOnlyParametersThatAreKeptAnswerEveryRound) {
  Start(Quorum{.least = 2, .kept = 3}, Sgd{.learning_rate = 1});
  for (uint64_t round : {0, 1, 2}) Close(round);
  EXPECT_EQ(kept_->Find(Round{1}), nullptr);
  EXPECT_EQ(ValueOf(Ask(0, 3)), 20);
  EXPECT_EQ(Ask(0, 3).header.round, Round{0});
  EXPECT_EQ(Ask(0, 3).header.newest_round, Round{2});
  EXPECT_THAT(kept_->Behind(Round{3}, roster_), IsEmpty());
}

TEST_F(KeptResultsTest, RestoredResultsAreNewestFirst) {
  Start();
  kept_->Restore(RecordOf(6), SlotOf(6));
  kept_->Restore(RecordOf(5), SlotOf(5));
  EXPECT_EQ(kept_->newest_round(), Round{6});
  EXPECT_EQ(ValueOf(Ask(5, 7)), 50);
  EXPECT_EQ(ValueOf(Ask(6, 7)), 60);
}

}  // namespace
}  // namespace syncgrads::server
