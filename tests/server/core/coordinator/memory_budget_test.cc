#include "server/core/coordinator/memory_budget.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

// Half of the `total` bytes are allocated at once.
std::vector<MemoryNeed> Need(uint64_t total) { return {{total, total / 2}}; }

class MemoryBudgetTest : public testing::Test {
 protected:
  // Admits a group if it fits, and allocates the half that is needed at once.
  absl::Status Admit(uint64_t total) {
    if (absl::Status room = budget_.Check("group", Need(total)); !room.ok()) return room;
    budget_.Reserve(Need(total));
    free_ -= total / 2;
    return absl::OkStatus();
  }

  uint64_t free_ = 1000;
  MemoryBudget budget_{1, [this](ServerIndex) { return free_; }};
};

TEST_F(MemoryBudgetTest, WhatIsStillToComeOfOneGroupIsNotFreeForAnother) {
  EXPECT_THAT(Admit(600), IsOk());
  ASSERT_EQ(free_, 700u);
  ExpectError(Admit(500), kExhausted,
              {"group needs 500 bytes on server 0", "700 bytes are available",
               "of the 1000 that jobs can take, 600 are reserved"});
  EXPECT_THAT(Admit(400), IsOk());
  ExpectError(Admit(1), kExhausted, {"1000 are reserved"});
}

TEST_F(MemoryBudgetTest, WhatHasComeIsNotCountedTwice) {
  EXPECT_THAT(Admit(600), IsOk());
  free_ = 400;  // all contributions of the first group have arrived
  EXPECT_THAT(Admit(400), IsOk());
}

TEST_F(MemoryBudgetTest, WhatIsReleasedIsFree) {
  EXPECT_THAT(Admit(1000), IsOk());
  ExpectError(Admit(10), kExhausted, {});
  budget_.Release(Need(1000));
  free_ = 1000;
  EXPECT_THAT(Admit(900), IsOk());
}

TEST_F(MemoryBudgetTest, NoticesWhatOtherProcessesTakeAndGiveBack) {
  EXPECT_THAT(Admit(200), IsOk());
  free_ = 100;
  ExpectError(Admit(101), kExhausted, {"100 bytes are available"});
  // Jobs can take 300 bytes in all: the 100 that are free, and up to 200 that the first group may
  // have allocated.
  EXPECT_THAT(Admit(100), IsOk());
  budget_.Release(Need(100));
  budget_.Release(Need(200));
  free_ = 5000;
  EXPECT_THAT(Admit(5000), IsOk());
}

TEST_F(MemoryBudgetTest, AfterARestartWhatWasMadeAtOnceIsThere) {
  free_ = 500;
  budget_.Reserve(Need(600));  // a restored group, which has allocated 300 bytes
  EXPECT_THAT(Admit(200), IsOk());
  ExpectError(Admit(1), kExhausted, {"of the 800 that jobs can take, 800 are reserved"});
}

TEST_F(MemoryBudgetTest, NeedsThatNoNumberHoldsAreRefused) {
  ExpectError(Admit(kMost), kExhausted, {});
  std::vector<MemoryNeed> sum = Need(kMost);
  AddTo(sum, Need(kMost));
  EXPECT_EQ(sum[0].total, kMost);
  budget_.Reserve({{kMost, 0}});
  budget_.Reserve({{kMost, 0}});
  ExpectError(Admit(1), kExhausted, {});
}

TEST(MemoryBudgetOfServersTest, EachServerIsCheckedThatHasReported) {
  std::vector<std::optional<uint64_t>> free = {1000, std::nullopt, 10};
  MemoryBudget budget(3, [&](ServerIndex server) { return free[ToNumber(server)]; });
  EXPECT_THAT(budget.Check("g", {{900, 0}, {900, 0}, {10, 0}}), IsOk());
  ExpectError(budget.Check("g", {{900, 0}, {900, 0}, {11, 0}}), kExhausted,
              {"11 bytes on server 2"});
}

}  // namespace
}  // namespace syncgrads::server
