#include "server/core/jobs/served_group.h"

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/group/policy.h"
#include "gtest/gtest.h"
#include "server/core/closing/closers.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// Large enough that its rounds are closed by the closers.
constexpr int64_t kLarge = 100'000;

// Groups of a job with two members, on server 0.
class ServedGroupTest : public testing::Test {
 protected:
  ServedGroupTest() {
    auto roster = std::make_shared<Roster>();
    roster->Add(EpochOfSize(2));
    roster_ = std::move(roster);
  }

  std::shared_ptr<ServedGroup> Make(GroupPlan plan,
                                    absl::StatusOr<GroupResults> results = GroupResults(),
                                    Closers* closers = nullptr) {
    return std::make_shared<ServedGroup>(
        ServedGroup::Dependencies{"iris", Generation{1}, ServerIndex{0}, clock_, closers, nullptr,
                                  std::make_shared<GradientAlerts>()},
        std::make_shared<GroupPlan>(std::move(plan)), 5, std::move(results),
        std::make_shared<CurrentRoster>(roster_));
  }
  static GroupPlan OneOf(int64_t elements = 4) {
    return OneTensor(DType::kF32, elements, Reduction::kSum);
  }
  static GroupPlan Elsewhere(GroupSpec spec) { return PlanOf(std::move(spec), {ServerIndex{1}}); }

  static std::shared_ptr<RecordingSink> Push(ServedGroup& group, uint32_t member, uint64_t round,
                                             int64_t elements = 4) {
    auto sink = std::make_shared<RecordingSink>();
    EXPECT_THAT(group.Push(PushOf(member, round),
                           PayloadOf(std::string(elements * sizeof(float), '\0')), sink),
                IsOk());
    return sink;
  }

  FakeClock clock_;
  std::shared_ptr<const Roster> roster_;
};

TEST_F(ServedGroupTest, KnowsSinceWhenTheOldestPushWaits) {
  const auto group = Make(OneOf());
  EXPECT_EQ(group->OldestWait(), std::nullopt);
  const absl::Time first = clock_.Now();
  Push(*group, 0, 1);
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(group->OldestWait(), first);
  Push(*group, 1, 1);
  for (int look = 0; look < 3; ++look) EXPECT_EQ(group->OldestWait(), std::nullopt);
  const absl::Time second = clock_.Now();
  Push(*group, 1, 2);
  EXPECT_EQ(group->OldestWait(), second);
}

TEST_F(ServedGroupTest, ReportsTheRoundsOfItsChunks) {
  const GroupSpec spec{
      "model", {{"a", DType::kF32, {4}}, {"b", DType::kF32, {4}}}, Reduction::kSum, 16};
  const auto group = Make(PlanOf(spec));
  const auto push = [&group](uint32_t member, uint64_t round, uint32_t chunk) {
    EXPECT_THAT(group->Push(PushOf(member, round, chunk), PayloadOf(std::string(16, '\0')),
                            std::make_shared<RecordingSink>()),
                IsOk());
  };
  EXPECT_EQ(group->Progress().since_last_round, absl::ZeroDuration());
  push(0, 1, 0);
  push(1, 1, 0);
  push(1, 1, 1);
  clock_.Advance(absl::Seconds(3));
  push(1, 2, 0);
  clock_.Advance(absl::Seconds(2));
  const GroupProgress progress = group->Progress();
  EXPECT_EQ(progress.chunks, 2u);
  EXPECT_EQ(progress.open, Round{1});
  EXPECT_EQ(progress.open_chunks, 2u);
  EXPECT_EQ(progress.oldest_open, absl::Seconds(5));
  EXPECT_EQ(progress.rounds_closed, 1u);
  EXPECT_EQ(progress.since_last_round, absl::Seconds(5));
  EXPECT_EQ(progress.round_duration.counts[0], 1u);
  EXPECT_EQ(progress.rounds_per_second, 0);
  ASSERT_THAT(progress.contributors, SizeIs(2));
  EXPECT_EQ(progress.contributors[0].round, Round{1});
  EXPECT_EQ(progress.contributors[1].round, Round{2});
  push(0, 2, 0);
  EXPECT_DOUBLE_EQ(group->Progress().rounds_per_second, 1 / 5.0);
}

TEST_F(ServedGroupTest, UnderStalenessARoundIsAContributionOfEachMember) {
  GroupSpec spec{"model", {{"a", DType::kF32, {4}}}, Sgd{.learning_rate = 1}, 16};
  spec.policy = Staleness{};
  const auto group = Make(PlanOf(spec));
  const auto push = [&group](uint32_t member, uint64_t round) {
    EXPECT_THAT(group->Push(PushOf(member, round), PayloadOf(std::string(16, '\0')),
                            std::make_shared<RecordingSink>()),
                IsOk());
  };
  push(0, 0);
  for (uint64_t round = 1; round <= 6; ++round) {
    clock_.Advance(absl::Milliseconds(500));
    for (uint32_t member : {0, 1}) push(member, round);
  }
  EXPECT_NEAR(group->Progress().rounds_per_second, 2, 0.2);
}

TEST_F(ServedGroupTest, CountsTheMemoryOfItsResultsAndContributions) {
  const GroupSpec spec{"model", {{"w", DType::kF32, {kLarge}}}, Reduction::kSum, 0};
  const uint64_t bytes = kLarge * sizeof(float);
  EXPECT_EQ(Make(Elsewhere(spec))->MemoryBytes(2), 0u);
  const uint64_t two = Make(PlanOf(spec))->MemoryBytes(2);
  EXPECT_GE(two, 4 * bytes) << "two results, and two contributions";
  EXPECT_LT(two, 5 * bytes);
  EXPECT_EQ(Make(PlanOf(spec))->MemoryBytes(5), two + 3 * bytes);
}

TEST_F(ServedGroupTest, HoldsTheResultsOfARoundThatIsKeptAndNamesTheOpenOneOtherwise) {
  const auto group = Make(OneOf());
  Push(*group, 0, 1);
  Push(*group, 1, 1);
  const auto held = group->HoldRound(Round{1});
  ASSERT_THAT(held, IsOk());
  ASSERT_THAT(*held, SizeIs(1));
  EXPECT_EQ((*held)[0]->round, Round{1});
  ExpectError(group->HoldRound(Round{2}), absl::StatusCode::kFailedPrecondition,
              {"round 2", "\"model\"", "round 2 is open"});
}

TEST_F(ServedGroupTest, WithoutResultsItHasNoChunksAndRefusesEveryPush) {
  const auto group = Make(OneOf(), absl::ResourceExhaustedError("no room"));
  const auto sink = std::make_shared<RecordingSink>();
  ExpectError(group->Push(PushOf(0, 1), PayloadOf(std::string(16, '\0')), sink),
              absl::StatusCode::kResourceExhausted, {"no room"});
  EXPECT_EQ(sink->count(), 0u);
  EXPECT_EQ(group->Progress().chunks, 0u);
  EXPECT_EQ(group->UnreadBytes(2), 0u);
  EXPECT_EQ(group->NewestOpenRound(), std::nullopt);
  EXPECT_EQ(group->shared_results(), nullptr);
  const PresenceTable presences(clock_);
  ExplainBudget budget;
  EXPECT_THAT(group->Explain(*roster_, presences, "", clock_.Now(), budget), IsEmpty());
}

TEST_F(ServedGroupTest, CountsTheUnreadBytesOfTheChunksThatAreHere) {
  const GroupSpec spec{
      "model", {{"a", DType::kF32, {32}}, {"b", DType::kF32, {32}}}, Reduction::kSum, 128};
  const auto both = Make(PlanOf(spec));
  const auto one = Make(PlanOf(spec, {ServerIndex{0}, ServerIndex{1}}));
  EXPECT_GE(one->UnreadBytes(2), 32 * sizeof(float));
  EXPECT_EQ(both->UnreadBytes(2), 2 * one->UnreadBytes(2));
}

TEST_F(ServedGroupTest, NamesTheOldestRoundWhoseEpochIsNeeded) {
  const GroupSpec sum{"model", {{"w", DType::kF32, {4}}}, Reduction::kSum, 0};
  const auto here = Make(PlanOf(sum));
  EXPECT_EQ(here->OldestNeededRound(), Round{1});
  Push(*here, 0, 1);
  Push(*here, 1, 1);
  EXPECT_EQ(here->OldestNeededRound(), Round{2});
  EXPECT_EQ(Make(Elsewhere(sum))->OldestNeededRound(), std::nullopt);
  // The coordinator decides the rounds of a quorum wherever the chunks are.
  GroupSpec quorum = sum;
  quorum.policy = Quorum{1, absl::ZeroDuration()};
  EXPECT_EQ(Make(Elsewhere(quorum))->OldestNeededRound(), Round{0});
  GroupSpec stale = sum;
  stale.rule = Optimizer(Sgd{});
  stale.policy = Staleness{};
  EXPECT_EQ(Make(PlanOf(stale))->OldestNeededRound(), std::nullopt);
}

TEST_F(ServedGroupTest, LivesUntilItsRoundsAreClosed) {
  Closers closers(1);
  std::promise<void> busy;
  closers.Run("another job", [&busy] { busy.get_future().wait(); });
  auto group = Make(OneOf(kLarge), GroupResults(), &closers);
  const auto first = Push(*group, 0, 1, kLarge), second = Push(*group, 1, 1, kLarge);
  EXPECT_EQ(second->count(), 0u);
  group.reset();
  busy.set_value();
  EXPECT_THAT(first->Wait(0).header.error, IsOk());
  EXPECT_THAT(second->Wait(0).header.error, IsOk());
}

}  // namespace
}  // namespace syncgrads::server
