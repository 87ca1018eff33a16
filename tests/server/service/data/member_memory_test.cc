#include "server/service/data/member_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>

#include "common/shm/region.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

std::shared_ptr<const RoundResult> ResultOf(uint32_t chunk, uint64_t round) {
  auto result = std::make_shared<RoundResult>();
  result->chunk = ChunkId{chunk};
  result->round = Round{round};
  return result;
}

class MemberMemoryTest : public ::testing::Test {
 protected:
  MemberMemoryTest() {
    auto region = SharedRegion::Create("test", 100);
    std::memcpy((*region)->data(), "0123456789", 10);
    EXPECT_TRUE(memory_.Add(7, *PeerRegion::Map(*(*region)->ReadOnlyDescriptor())).ok());
  }

  MemberMemory memory_;
};

TEST_F(MemberMemoryTest, FindsWhatAPushNames) {
  const auto payload = memory_.Find({{7, 2, 3}, {7, 8, 2}});
  ASSERT_TRUE(payload.ok()) << payload.status();
  ASSERT_EQ(payload->pieces.size(), 2u);
  EXPECT_EQ(std::memcmp(payload->pieces[0].data(), "234", 3), 0);
  EXPECT_EQ(std::memcmp(payload->pieces[1].data(), "89", 2), 0);
}

TEST_F(MemberMemoryTest, AnUnknownRegionIsNamed) {
  ExpectError(memory_.Find({{8, 0, 1}}), absl::StatusCode::kUnavailable, {"region 8"});
}

TEST_F(MemberMemoryTest, NothingBeyondARegionIsRead) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  for (const SharedPiece& piece : {SharedPiece{7, 90, 11}, SharedPiece{7, 101, 0},
                                   SharedPiece{7, kMost, 2}, SharedPiece{7, 2, kMost}}) {
    ExpectError(memory_.Find({piece}), absl::StatusCode::kInvalidArgument,
                {"region 7 of 100 bytes"});
  }
  EXPECT_TRUE(memory_.Find({{7, 100, 0}}).ok());
}

TEST_F(MemberMemoryTest, AResultIsHeldUntilALaterRoundIsPushed) {
  const auto first = ResultOf(0, 1), second = ResultOf(0, 2), other = ResultOf(1, 1);
  for (const auto& result : {first, second, other}) EXPECT_TRUE(memory_.Lend(result));
  EXPECT_EQ(first.use_count(), 2);
  memory_.TakeBack(GroupId{0}, ChunkId{0}, Round{2});
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(second.use_count(), 2);
  EXPECT_EQ(other.use_count(), 2);
}

TEST_F(MemberMemoryTest, AResultThatIsAskedForAgainIsHeldOnce) {
  const auto result = ResultOf(0, 1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(memory_.Lend(result));
  EXPECT_EQ(result.use_count(), 2);
}

TEST_F(MemberMemoryTest, AWorkerThatHasGoneHoldsNothing) {
  const auto result = ResultOf(0, 1);
  EXPECT_TRUE(memory_.Lend(result));
  memory_.SetMapped(GroupId{0});
  memory_.Close();
  EXPECT_EQ(result.use_count(), 1);
  EXPECT_FALSE(memory_.Lend(result));
  EXPECT_FALSE(memory_.IsMapped(GroupId{0}));
  ExpectError(memory_.Find({{7, 0, 1}}), absl::StatusCode::kUnavailable, {"region 7"});
}

}  // namespace
}  // namespace syncgrads::server
