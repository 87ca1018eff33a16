#include "server/core/jobs/roster_pass.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A chunk that counts how often the roster is passed to it.
class FakeChunk : public ServedChunk {
 public:
  explicit FakeChunk(bool has_pushes) { SetHasPushes(has_pushes); }

  CloseWork TakeRoster() override {
    ++visits;
    if (on_visit) std::exchange(on_visit, nullptr)();
    return left;
  }
  CloseWork Seat(const PushHeader&, Payload, std::shared_ptr<AnswerSink>) override {
    return CloseWork::kNone;
  }
  CloseWork Close() override { return CloseWork::kNone; }
  Round Hold() override { return Round{1}; }
  CloseWork EndHold() override { return CloseWork::kNone; }
  std::optional<ChunkWait> Explain() const override { return std::nullopt; }
  std::optional<ChunkWait> ExplainBriefly() const override { return std::nullopt; }
  Round open_round() const override { return Round{1}; }
  size_t result_bytes() const override { return 8; }

  int visits = 0;
  CloseWork left = CloseWork::kNone;
  std::function<void()> on_visit;
};

// A group with `chunks` chunks, of which `with_pushes` have a push.
class RosterPassTest : public testing::Test {
 protected:
  void Make(size_t chunks, const std::vector<size_t>& with_pushes) {
    for (size_t c = 0; c < chunks; ++c) {
      const bool has_pushes = std::count(with_pushes.begin(), with_pushes.end(), c) > 0;
      chunks_.push_back(std::make_unique<FakeChunk>(has_pushes));
    }
  }
  FakeChunk& chunk(size_t c) { return static_cast<FakeChunk&>(*chunks_[c]); }
  // Makes a pass, and those that follow it at once. Returns the number of parts.
  int Visit() {
    int parts = 0;
    for (std::optional<size_t> next = 0; next.has_value(); ++parts) {
      next = pass_.Visit(chunks_, *next, [this](ServedChunk& chunk, CloseWork work) {
        if (work != CloseWork::kNone) closed_.push_back(&chunk);
      });
    }
    return parts;
  }
  size_t Visits() {
    size_t visits = 0;
    for (const auto& chunk : chunks_) {
      if (chunk != nullptr) visits += static_cast<FakeChunk&>(*chunk).visits;
    }
    return visits;
  }

  RosterPass pass_;
  std::vector<std::unique_ptr<ServedChunk>> chunks_;
  std::vector<ServedChunk*> closed_;
};

TEST_F(RosterPassTest, OfTheChunksWithoutAPushItVisitsOnlyTheFirst) {
  Make(65'000, {5, 64'999});
  chunks_[0] = nullptr;  // it is on another server
  ASSERT_TRUE(pass_.Begin());
  Visit();
  EXPECT_EQ(chunk(1).visits, 1);
  EXPECT_EQ(chunk(5).visits, 1);
  EXPECT_EQ(chunk(64'999).visits, 1);
  EXPECT_EQ(Visits(), 3u);
}

TEST_F(RosterPassTest, ClosesTheChunksWhoseRoundTheRosterCompletes) {
  Make(5, {2, 3});
  chunk(3).left = CloseWork::kMuch;
  ASSERT_TRUE(pass_.Begin());
  Visit();
  EXPECT_THAT(closed_, ElementsAre(&chunk(3)));
}

TEST_F(RosterPassTest, OnePassServesAllChangesBeforeItBegins) {
  Make(3, {0, 1, 2});
  ASSERT_TRUE(pass_.Begin());
  for (int change = 0; change < 1000; ++change) EXPECT_FALSE(pass_.Begin());
  EXPECT_EQ(Visit(), 1);
  EXPECT_EQ(Visits(), 3u);
  EXPECT_TRUE(pass_.Begin());
}

TEST_F(RosterPassTest, ChangesDuringAPassAreServedByOneMore) {
  Make(3, {0, 1, 2});
  chunk(1).on_visit = [this] {
    for (int change = 0; change < 1000; ++change) EXPECT_FALSE(pass_.Begin());
  };
  ASSERT_TRUE(pass_.Begin());
  EXPECT_EQ(Visit(), 2);
  EXPECT_EQ(Visits(), 6u);
  EXPECT_TRUE(pass_.Begin());
}

TEST_F(RosterPassTest, APartLooksAtALimitedNumberOfChunks) {
  const size_t part = RosterPass::kChunksOfPart;
  Make(2 * part + 1, {0, part, 2 * part});
  ASSERT_TRUE(pass_.Begin());
  const auto finish = [](ServedChunk&, CloseWork) {};
  EXPECT_EQ(pass_.Visit(chunks_, 0, finish), part);
  EXPECT_EQ(Visits(), 1u);
  EXPECT_EQ(pass_.Visit(chunks_, part, finish), 2 * part);
  EXPECT_EQ(pass_.Visit(chunks_, 2 * part, finish), std::nullopt);
  EXPECT_EQ(Visits(), 3u);
}

TEST_F(RosterPassTest, AGroupWithoutChunksHereHasNothingToVisit) {
  ASSERT_TRUE(pass_.Begin());
  EXPECT_EQ(Visit(), 1);
  EXPECT_THAT(closed_, IsEmpty());
  EXPECT_TRUE(pass_.Begin());
}

}  // namespace
}  // namespace syncgrads::server
