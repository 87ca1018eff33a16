#include "server/core/jobs/presence_table.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

constexpr MemberId kFirst{1}, kSecond{2};

class EndedStream : public MemberStream {
 public:
  void Cut(const absl::Status&) override { ADD_FAILURE() << "cut"; }
  void End(const absl::Status& reason) override { ended = reason; }
  absl::Status ended;
};

TEST(PresenceTableTest, AMemberHasOnePresenceWhichBeginsWithAMessage) {
  FakeClock clock;
  PresenceTable presences(clock);
  EXPECT_EQ(presences.Find(kFirst), nullptr);
  const absl::Time made = clock.Now();
  const std::shared_ptr<Presence> first = presences.Of(kFirst);
  clock.Advance(absl::Seconds(5));
  EXPECT_EQ(presences.Of(kFirst), first);
  EXPECT_EQ(presences.Find(kFirst), first);
  EXPECT_EQ(first->last_message(), made);
  EXPECT_NE(presences.Of(kSecond), first);
}

TEST(PresenceTableTest, ForgetsMembersThatTheJobDoesNotKnowAndThatHaveNoStreams) {
  const FakeClock clock;
  PresenceTable presences(clock);
  const auto stream = std::make_shared<EndedStream>();
  const std::shared_ptr<Presence> known = presences.Of(kFirst), unknown = presences.Of(kSecond);
  EXPECT_THAT(unknown->AddStream(stream), IsOk());
  Roster roster;
  Epoch epoch;
  epoch.members = {{kFirst, "a", Incarnation{1}}};
  roster.Add(epoch);
  presences.ForgetUnless(roster);
  EXPECT_EQ(presences.Find(kFirst), known);
  EXPECT_EQ(presences.Find(kSecond), unknown);
  unknown->RemoveStream(stream.get());
  presences.ForgetUnless(roster);
  EXPECT_EQ(presences.Find(kFirst), known);
  EXPECT_EQ(presences.Find(kSecond), nullptr);
}

TEST(PresenceTableTest, EndsTheStreamsOfAllMembers) {
  const FakeClock clock;
  PresenceTable presences(clock);
  const auto one = std::make_shared<EndedStream>(), other = std::make_shared<EndedStream>();
  EXPECT_THAT(presences.Of(kFirst)->AddStream(one), IsOk());
  EXPECT_THAT(presences.Of(kSecond)->AddStream(other), IsOk());
  presences.EndStreams(absl::UnavailableError("over"));
  EXPECT_EQ(one->ended, absl::UnavailableError("over"));
  EXPECT_EQ(other->ended, absl::UnavailableError("over"));
  ExpectError(presences.Of(kFirst)->AddStream(one), absl::StatusCode::kUnavailable, {"over"});
}

}  // namespace
}  // namespace syncgrads::server
