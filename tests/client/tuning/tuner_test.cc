#include "client/tuning/tuner.h"

#include <algorithm>
#include <map>
#include <vector>

#include "common/group/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kKiB = 1 << 10;

// A path on which the duration of a step depends on the chunk size: `ms` has milliseconds by KiB.
// Its own choice of the chunk size is 256 KiB.
class Path {
 public:
  explicit Path(std::map<uint32_t, double> ms) : ms_(std::move(ms)) {}

  TryChunks Try() {
    return [this](uint32_t chunk_bytes) -> absl::StatusOr<ChunkTrial> {
      const uint32_t size = chunk_bytes == 0 ? 256 * kKiB : chunk_bytes;
      tried.push_back(size / kKiB);
      if (!ms_.contains(size / kKiB)) return absl::UnavailableError("the server has gone");
      return ChunkTrial{size, absl::Milliseconds(ms_.at(size / kKiB))};
    };
  }

  std::vector<uint32_t> tried;

 private:
  const std::map<uint32_t, double> ms_;
};

TEST(ChooseChunksTest, HalvesForAsLongAsThatHelps) {
  Path path({{64, 80}, {128, 70}, {256, 100}});
  const auto choice = ChooseChunks(path.Try());
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->best.chunk_bytes, 128 * kKiB);
  EXPECT_THAT(path.tried, ElementsAre(256, 128, 64));
  EXPECT_EQ(choice->ToString(),
            "chunk size: a step in chunks of 128 KiB takes 70 ms; of 256 KiB, the default, takes "
            "100 ms");
}

TEST(ChooseChunksTest, DoublesWhereHalvesAreNoBetter) {
  Path path({{128, 98}, {256, 100}, {512, 90}, {1024, 60}, {2048, 59}});
  const auto choice = ChooseChunks(path.Try());
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->best.chunk_bytes, 1024 * kKiB);
  EXPECT_THAT(path.tried, ElementsAre(256, 128, 512, 1024, 2048));
}

TEST(ChooseChunksTest, StaysWithTheUsualSizeUnlessAnotherIsClearlyFaster) {
  Path path({{128, 96}, {256, 100}, {512, 96}});
  const auto choice = ChooseChunks(path.Try());
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->best.chunk_bytes, 256 * kKiB);
  EXPECT_THAT(choice->ToString(), HasSubstr("no other was faster"));
}

TEST(ChooseChunksTest, TriesNoSizeThatALayoutCannotHave) {
  Path path({{64, 1}, {128, 10}, {256, 100}});
  ASSERT_TRUE(ChooseChunks(path.Try()).ok());
  EXPECT_EQ(*std::min_element(path.tried.begin(), path.tried.end()), 64u);
  Path growing({{128, 101}, {256, 100}, {512, 50}, {1024, 20}, {2048, 10}, {4096, 5}});
  ASSERT_TRUE(ChooseChunks(growing.Try()).ok());
  EXPECT_EQ(*std::max_element(growing.tried.begin(), growing.tried.end()) * kKiB, kMaxChunkBytes);
}

TEST(ChooseChunksTest, FailsAsATrialDoes) {
  const std::map<uint32_t, double> no_other = {{256, 100}};
  Path path(no_other);
  EXPECT_EQ(ChooseChunks(path.Try()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace syncgrads::client
