#include "server/state/arena.h"

#include <sys/resource.h>

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

TEST(ArenaTest, ArenasTakeAnEighthOfTheDescriptors) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = 80;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<std::shared_ptr<Arena>> arenas;
  for (int i = 0; i < 10; ++i) {
    auto arena = Arena::Create("test", {64}, 0);
    ASSERT_THAT(arena, IsOk());
    arenas.push_back(*std::move(arena));
  }
  ExpectError(Arena::Create("test", {64}, 0).status(), absl::StatusCode::kResourceExhausted,
              {"10 groups", "80 file descriptors"});
  arenas.pop_back();
  EXPECT_THAT(Arena::Create("test", {64}, 0), IsOk());
}

}  // namespace
}  // namespace syncgrads::server
