#include "server/core/jobs/round_waits.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// A chunk that waits for what the test says, and counts how often its missing members are listed.
class FakeChunk : public ServedChunk {
 public:
  FakeChunk(Round round, absl::Time since, std::shared_ptr<const std::vector<MemberId>> missing,
            size_t* looks)
      : wait_{round, since, {}}, missing_(std::move(missing)), looks_(looks) {
    SetWaitingSince(since);
  }

  CloseWork Seat(const PushHeader&, Payload, std::shared_ptr<AnswerSink>) override {
    return CloseWork::kNone;
  }
  CloseWork Close() override { return CloseWork::kNone; }
  CloseWork TakeRoster() override { return CloseWork::kNone; }
  Round Hold() override { return wait_.round; }
  CloseWork EndHold() override { return CloseWork::kNone; }
  std::optional<ChunkWait> Explain() const override {
    ++*looks_;
    return ChunkWait{wait_.round, wait_.since, *missing_};
  }
  std::optional<ChunkWait> ExplainBriefly() const override { return wait_; }
  Round open_round() const override { return wait_.round; }
  size_t result_bytes() const override { return 8; }

 private:
  const ChunkWait wait_;  // without the missing members
  const std::shared_ptr<const std::vector<MemberId>> missing_;
  size_t* const looks_;
};

// A group of chunks of 8 bytes, each with one tensor.
class RoundWaitsTest : public testing::Test {
 protected:
  void Make(uint32_t chunks, uint32_t members) {
    GroupSpec spec{"model", {}, Reduction::kSum, 8};
    for (uint32_t c = 0; c < chunks; ++c) {
      spec.tensors.push_back({absl::StrCat("t", c), DType::kF32, {2}});
    }
    plan_ = PlanOf(spec);
    roster_.Add(EpochOfSize(members));
  }
  using Members = std::shared_ptr<const std::vector<MemberId>>;

  void Add(uint64_t round, Members missing) {
    chunks_.push_back(
        std::make_unique<FakeChunk>(Round{round}, clock_.Now(), std::move(missing), &looks_));
  }
  std::vector<RoundWait> Explain() {
    looks_ = 0;
    return ExplainRounds(*plan_, chunks_, roster_, presences_, "", clock_.Now(), budget_);
  }

  static Members Of(std::vector<uint32_t> numbers) {
    auto members = std::make_shared<std::vector<MemberId>>();
    for (uint32_t number : numbers) members->push_back(MemberId{number});
    return members;
  }
  // All members but the first one.
  static Members AllButOne(uint32_t members) {
    std::vector<uint32_t> numbers(members - 1);
    std::iota(numbers.begin(), numbers.end(), 1);
    return Of(std::move(numbers));
  }
  static std::vector<std::string> NamesOf(const RoundWait& wait) {
    std::vector<std::string> names;
    for (const RoundWait::Missing& missing : wait.missing) names.push_back(missing.name);
    return names;
  }

  FakeClock clock_;
  std::optional<GroupPlan> plan_;
  Roster roster_;
  PresenceTable presences_{clock_};
  std::vector<std::unique_ptr<ServedChunk>> chunks_;
  ExplainBudget budget_;
  size_t looks_ = 0;
};

TEST_F(RoundWaitsTest, ListsTheMissingMembersOfEveryChunkOnce) {
  Make(4, 4);
  Add(1, Of({1}));
  Add(2, Of({1, 2}));
  chunks_.push_back(nullptr);
  Add(1, Of({3, 1}));
  const std::vector<RoundWait> waits = Explain();
  ASSERT_THAT(waits, SizeIs(2));
  EXPECT_EQ(waits[0].round, Round{1});
  EXPECT_EQ(waits[0].open_chunks, 2u);
  EXPECT_THAT(waits[0].tensors, ElementsAre("t0", "t3"));
  EXPECT_THAT(NamesOf(waits[0]), ElementsAre("w1", "w3"));
  EXPECT_EQ(waits[1].round, Round{2});
  EXPECT_THAT(NamesOf(waits[1]), ElementsAre("w1", "w2"));
}

// 65,536 chunks in which 299 of 300 members are missing: 20 million seats.
TEST_F(RoundWaitsTest, LooksUpTheSeatsOfAPartOfManyChunksOfManyMembers) {
  constexpr uint32_t kMembers = 300;
  Make(kMaxChunks, kMembers);
  const Members missing = AllButOne(kMembers);
  while (chunks_.size() < kMaxChunks) Add(1, missing);
  const std::vector<RoundWait> waits = Explain();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].open_chunks, kMaxChunks);
  EXPECT_EQ(waits[0].tensor_count, kMaxChunks);
  EXPECT_THAT(waits[0].missing, SizeIs(kMembers - 1));
  EXPECT_LE(looks_ * kMembers, kMostSeatsOfRound);
}

TEST_F(RoundWaitsTest, ThePartOfTheChunksIsSpreadOverAllOfThem) {
  constexpr uint32_t kMembers = 64, kChunks = 4096;
  Make(kChunks, kMembers);
  for (uint32_t c = 0; c < kChunks; ++c) Add(1, Of({c < kChunks / 2 ? 1u : 2u}));
  const std::vector<RoundWait> waits = Explain();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_THAT(NamesOf(waits[0]), ElementsAre("w1", "w2"));
  EXPECT_EQ(looks_, kMostSeatsOfRound / kMembers);
}

// A round without a chunk that was looked up would have no missing members, as if it were complete.
TEST_F(RoundWaitsTest, LooksUpAChunkOfEachRoundEvenIfNoSeatsAreLeft) {
  Make(4, 2);
  budget_.seats = 0;
  for (uint64_t round : {1u, 1u, 2u, 2u}) Add(round, Of({1}));
  const std::vector<RoundWait> waits = Explain();
  ASSERT_THAT(waits, SizeIs(2));
  for (const RoundWait& wait : waits) {
    EXPECT_EQ(wait.open_chunks, 2u);
    EXPECT_THAT(NamesOf(wait), ElementsAre("w1"));
  }
  EXPECT_EQ(looks_, 2u);
}

// A job can open another round in each chunk.
TEST_F(RoundWaitsTest, ListsTheOldestRoundsAndAllGroupsShareTheBudget) {
  constexpr uint32_t kChunks = 1000, kMembers = 300;
  Make(kChunks, kMembers);
  const Members missing = AllButOne(kMembers);
  while (chunks_.size() < kChunks) Add(kChunks - chunks_.size(), missing);
  const std::vector<RoundWait> waits = Explain();
  ASSERT_THAT(waits, SizeIs(ExplainBudget().rounds));
  EXPECT_EQ(waits.front().round, Round{1});
  EXPECT_EQ(waits.back().round, Round{ExplainBudget().rounds});
  EXPECT_EQ(looks_, ExplainBudget().rounds);
  EXPECT_THAT(Explain(), IsEmpty()) << "another group of the same call";
  EXPECT_EQ(looks_, 0u);
}

}  // namespace
}  // namespace syncgrads::server
