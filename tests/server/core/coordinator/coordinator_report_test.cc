// Tests the reports of the coordinator about its jobs and servers.

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CoordinatorReportTest : public CoordinatorTest {
 protected:
  explicit CoordinatorReportTest(uint32_t servers = 1) : CoordinatorTest(servers) {}

  Joined JoinElastic(const std::string& name) {
    Hello hello = NewHello(name, 2);
    hello.max_workers = 3;
    return Join(hello);
  }
  // Two members of an elastic job that are ready.
  void Begin() {
    a_ = JoinElastic("a");
    b_ = JoinElastic("b");
    coordinator_.Register(*a_.key, 1, Model());
    for (const Joined* joined : {&a_, &b_}) coordinator_.Ready(*joined->key, 2, GroupId{0});
  }
  std::vector<std::string> MembersReported() const {
    std::vector<std::string> names;
    for (const MemberReport& member : coordinator_.Report("iris").members) {
      names.push_back((member.rank.has_value() ? std::to_string(*member.rank) + " " : "") +
                      member.name + (member.gone ? " gone" : ""));
    }
    return names;
  }
  uint64_t Dropped(DropReason reason) const { return coordinator_.Report("iris").drops.of(reason); }

  Joined a_, b_;
};

TEST_F(CoordinatorReportTest, OfAnUnknownJobNothingIsReported) {
  const JobReport report = coordinator_.Report("iris");
  EXPECT_THAT(report.members, IsEmpty());
  EXPECT_EQ(report.joins, 0u);
}

TEST_F(CoordinatorReportTest, MembersAreThoseOfTheEpochInRankOrderAndThenNewcomers) {
  const Joined b = Join("b", 2, 0);
  EXPECT_THAT(MembersReported(), ElementsAre("b"));
  const Joined a = Join("a", 2, 1);
  EXPECT_THAT(MembersReported(), ElementsAre("0 b", "1 a"));
  const MemberReport first = coordinator_.Report("iris").members[0];
  EXPECT_EQ(first.member, b.key->member);
  EXPECT_EQ(first.host, "host-of-b");
  EXPECT_EQ(coordinator_.Report("iris").joins, 2u);
}

TEST_F(CoordinatorReportTest, ReconnectionsAreCountedBesideJoins) {
  const Joined a = Join("a", 1);
  EXPECT_EQ(coordinator_.Report("iris").reconnects, 0u);
  coordinator_.LinkBroken(*a.key, a.link.get());
  Rejoin(a);
  EXPECT_EQ(coordinator_.Report("iris").reconnects, 1u);
  EXPECT_EQ(coordinator_.Report("iris").joins, 1u);
}

TEST_F(CoordinatorReportTest, AMemberIsSilentSinceItsLastMessage) {
  Begin();
  clock_.Advance(absl::Seconds(7));
  coordinator_.Heartbeat(*b_.key);
  clock_.Advance(absl::Seconds(2));
  const JobReport report = coordinator_.Report("iris");
  ASSERT_THAT(report.members, SizeIs(2));
  EXPECT_EQ(report.members[0].silent, absl::Seconds(9));
  EXPECT_EQ(report.members[1].silent, absl::Seconds(2));
  EXPECT_EQ(report.lease, Options().membership.lease);
}

TEST_F(CoordinatorReportTest, AMemberHasTheFiguresThatItHasReportedLast) {
  Begin();
  const TrainingFigures first = {.step = 3, .loss = 0.5, .device = "cpu"};
  coordinator_.Heartbeat(*b_.key, {{}, first});
  EXPECT_EQ(coordinator_.Report("iris").members[0].figures, std::nullopt);
  EXPECT_EQ(coordinator_.Report("iris").members[1].figures, first);
  coordinator_.Heartbeat(*b_.key);
  EXPECT_EQ(coordinator_.Report("iris").members[1].figures, first);
  const TrainingFigures second = {.step = 4};
  coordinator_.Heartbeat(*b_.key, {{}, second});
  EXPECT_EQ(coordinator_.Report("iris").members[1].figures, second);
}

TEST_F(CoordinatorReportTest, TheCurvesOfAJobAreSampledByTicks) {
  Begin();
  for (uint64_t step = 1; step <= 3; ++step) {
    const auto loss = static_cast<double>(step);
    coordinator_.Heartbeat(*a_.key, {{}, TrainingFigures{.step = step, .loss = loss}});
    coordinator_.Heartbeat(*b_.key, {{}, TrainingFigures{.step = step, .loss = loss + 1}});
    coordinator_.Tick();
    coordinator_.Tick();
    clock_.Advance(absl::Seconds(1));
  }
  const TrainingCurves curves = coordinator_.Curves("iris");
  ASSERT_THAT(curves.training(), SizeIs(3));
  EXPECT_EQ(curves.training()[2].step, 3u);
  EXPECT_EQ(curves.training()[2].loss, 3.5);
  EXPECT_EQ(curves.training()[2].at, clock_.Now() - absl::Seconds(1));
  EXPECT_THAT(coordinator_.Curves("mnist").training(), IsEmpty());
}

TEST_F(CoordinatorReportTest, AMemberWhoseDataHasEndedFollows) {
  Begin();
  coordinator_.End(*b_.key, 3, GroupId{0}, Round{5}, true);
  const JobReport report = coordinator_.Report("iris");
  ASSERT_THAT(report.members, SizeIs(2));
  EXPECT_FALSE(report.members[0].follows);
  EXPECT_TRUE(report.members[1].follows);
}

TEST_F(CoordinatorReportTest, DropsAreCountedByTheirReason) {
  Begin();
  EXPECT_THAT(coordinator_.Evict("iris", "secret", "b", "its disk fails"), IsOk());
  EXPECT_EQ(Dropped(DropReason::kEvicted), 1u);
  EXPECT_THAT(MembersReported(), ElementsAre("0 a"));

  Joined c = JoinElastic("c");
  coordinator_.Ready(*c.key, 2, GroupId{0});
  EXPECT_THAT(MembersReported(), ElementsAre("0 a", "1 c"));
  coordinator_.LinkBroken(*c.key, c.link.get());
  clock_.Advance(absl::Seconds(6));
  coordinator_.Heartbeat(*a_.key);
  coordinator_.Tick();
  EXPECT_EQ(Dropped(DropReason::kStream), 1u);

  Joined d = JoinElastic("d");
  coordinator_.Ready(*d.key, 2, GroupId{0});
  clock_.Advance(absl::Seconds(31));
  coordinator_.Heartbeat(*a_.key);
  coordinator_.Tick();
  EXPECT_EQ(Dropped(DropReason::kLease), 1u);

  Joined e = JoinElastic("e");  // it never reports that it is ready
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(absl::Seconds(20));
    for (const Joined* joined : {&a_, &e}) coordinator_.Heartbeat(*joined->key);
    coordinator_.Tick();
  }
  EXPECT_EQ(Dropped(DropReason::kState), 1u);

  Joined f = JoinElastic("f");
  coordinator_.LinkBroken(*f.key, f.link.get());
  JoinElastic("f");
  EXPECT_EQ(Dropped(DropReason::kSuperseded), 1u);
  EXPECT_EQ(Dropped(DropReason::kEvicted), 1u);
  EXPECT_EQ(Dropped(DropReason::kBehind), 0u);
  EXPECT_EQ(coordinator_.Report("iris").joins, 7u);
}

TEST_F(CoordinatorReportTest, ATraceIsRequestedFromTheMembersOfTheEpoch) {
  Begin();
  EXPECT_THAT(coordinator_.Evict("iris", "secret", "b", "its disk fails"), IsOk());
  const Joined newcomer = JoinElastic("c");
  const std::map<MemberId, uint64_t> traces = {
      {a_.key->member, 17}, {b_.key->member, 18}, {newcomer.key->member, 19}};
  constexpr absl::Duration kLength = absl::Seconds(5);
  const auto workers = coordinator_.RequestTrace("iris", "secret", traces, kLength);
  ASSERT_THAT(workers, IsOk());
  std::vector<std::string> names;
  for (const MemberReport& worker : *workers) names.push_back(worker.name);
  EXPECT_THAT(names, ElementsAre("a", "c"));
  EXPECT_EQ(a_.link->Last<TraceRequested>(), (TraceRequested{17, kLength}));
  EXPECT_EQ(newcomer.link->Last<TraceRequested>(), (TraceRequested{19, kLength}));
  EXPECT_EQ(b_.link->Count<TraceRequested>(), 0u);
  // A member without a number is not asked.
  const auto only_a =
      coordinator_.RequestTrace("iris", "secret", {{a_.key->member, 17}}, absl::ZeroDuration());
  ASSERT_THAT(only_a, IsOk());
  EXPECT_THAT(*only_a, SizeIs(1));
  EXPECT_EQ(a_.link->Last<TraceRequested>(), (TraceRequested{17, absl::ZeroDuration()}));
  EXPECT_EQ(newcomer.link->Count<TraceRequested>(), 1u);
  ExpectError(coordinator_.RequestTrace("iris", "guess", traces, kLength),
              absl::StatusCode::kPermissionDenied, {"token"});
  ExpectError(coordinator_.RequestTrace("mnist", "secret", traces, kLength),
              absl::StatusCode::kNotFound, {"mnist"});
}

class TwoServersReportTest : public CoordinatorReportTest {
 protected:
  TwoServersReportTest() : CoordinatorReportTest(2) {}
};

TEST_F(TwoServersReportTest, ServersHaveTheirAddressesAndWhetherTheyAreConnected) {
  const auto expect = [this](const std::string& address, bool connected) {
    const std::vector<ServerReport> servers = coordinator_.Servers();
    ASSERT_THAT(servers, SizeIs(2));
    EXPECT_EQ(servers[0].address, "10.0.0.0:7000");
    EXPECT_TRUE(servers[0].connected);
    EXPECT_EQ(servers[1].address, address);
    EXPECT_EQ(servers[1].connected, connected);
  };
  expect("", false);
  const auto other = std::make_shared<FakeServer>(1, 11, clock_);
  EXPECT_THAT(coordinator_.AttachServer(other->identity, other), IsOk());
  expect("10.0.0.1:7000", true);
  coordinator_.DetachServer(ServerIndex{1}, other.get());
  expect("10.0.0.1:7000", false);
}

}  // namespace
}  // namespace syncgrads::server
