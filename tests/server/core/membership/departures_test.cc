#include "server/core/membership/departures.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

const GroupId kGroup{0};

TEST(DeparturesTest, EndsWhoLeftOnceItsTimeIsOver) {
  FakeClock clock;
  Departures departures;
  departures.Left(MemberId{1}, IncarnationOf(1), clock.Now());
  clock.Advance(absl::Seconds(10));
  departures.Left(MemberId{2}, IncarnationOf(2), clock.Now());
  departures.Left(MemberId{1}, IncarnationOf(1), clock.Now());  // the repetition changes nothing
  clock.Advance(absl::Seconds(19));
  EXPECT_TRUE(departures.TakeOverdue(clock.Now(), absl::Seconds(30)).empty());
  clock.Advance(absl::Seconds(1));
  const std::vector<MemberGone> overdue = departures.TakeOverdue(clock.Now(), absl::Seconds(30));
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_EQ(overdue[0].member, MemberId{1});
  EXPECT_EQ(overdue[0].incarnation, IncarnationOf(1));
  EXPECT_FALSE(overdue[0].graceful);
  EXPECT_EQ(overdue[0].reason,
            "it left 30.0s ago, and the job no longer waits for its missing contributions");
  EXPECT_TRUE(departures.TakeOverdue(clock.Now(), absl::Seconds(30)).empty());
  departures.Forget(MemberId{2});
  clock.Advance(absl::Minutes(1));
  EXPECT_TRUE(departures.TakeOverdue(clock.Now(), absl::Seconds(30)).empty());
}

// The roster does not wait for the member, even though it claimed a distant last round.
TEST(DeparturesTest, TheRosterWaitsNoLongerForIt) {
  FakeClock clock;
  Roster roster;
  roster.Add(EpochOfSize(2));
  roster.Remove(
      {MemberId{1}, IncarnationOf(1), "left", true, {{kGroup, Round{uint64_t{1} << 60}}}});
  ASSERT_TRUE(roster.Find(MemberId{1})->HasData(kGroup, Round{7}));
  Departures departures;
  departures.Left(MemberId{1}, IncarnationOf(1), clock.Now());
  clock.Advance(absl::Seconds(30));
  for (const MemberGone& gone : departures.TakeOverdue(clock.Now(), absl::Seconds(30))) {
    roster.Remove(gone);
  }
  EXPECT_FALSE(roster.Find(MemberId{1})->HasData(kGroup, Round{7}));
  EXPECT_FALSE(roster.Find(MemberId{1})->Follows(kGroup, Round{7}));
}

}  // namespace
}  // namespace syncgrads::server
