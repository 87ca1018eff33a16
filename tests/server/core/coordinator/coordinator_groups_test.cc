// Which groups the coordinator registers, and which ones it refuses.

#include <cstdint>
#include <memory>

#include "common/signals/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/coordinator/coordinator_fixture.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using MemberKey = Coordinator::MemberKey;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST_F(CoordinatorTest, GivesEveryMemberTheSamePlanOfAGroup) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 7, Model());
  coordinator_.Register(*b.key, 9, Model());
  EXPECT_EQ(a.link->Last<Registered>().request, 7u);
  EXPECT_EQ(b.link->Last<Registered>().request, 9u);
  EXPECT_EQ(a.link->Last<Registered>().plan, b.link->Last<Registered>().plan);
  GroupSpec other = Model();
  other.name = "other";
  coordinator_.Register(*b.key, 10, other);
  EXPECT_EQ(b.link->Last<Registered>().plan->id, GroupId{1});
  EXPECT_THAT(own_.Find("iris")->Progress(), SizeIs(2));
}

TEST_F(CoordinatorTest, RefusesAGroupThatIsNotTheOthersAndNamesBothValues) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  GroupSpec other = Model();
  other.tensors[0].shape = {5};
  coordinator_.Register(*b.key, 2, other);
  EXPECT_EQ(b.link->Last<Refused>().request, 2u);
  ExpectError(b.link->Last<Refused>().error, kInvalid,
              {"\"kernel\"", "f32[5]", "f32[4]", "worker \"a\""});
  EXPECT_EQ(b.link->Count<Registered>(), 0u);
  EXPECT_EQ(a.link->Count<Refused>(), 0u);
}

TEST_F(CoordinatorTest, RefusesAGroupThatCannotBeServed) {
  const Joined a = Join("a", 1);
  GroupSpec spec = Model();
  spec.rule = Reduction::kAverage;
  spec.tensors[0].dtype = DType::kI32;
  coordinator_.Register(*a.key, 1, spec);
  ExpectError(a.link->Last<Refused>().error, kInvalid, {"\"kernel\"", "i32", "average"});
  EXPECT_THAT(own_.Find("iris")->Progress(), IsEmpty());
}

TEST(CoordinatorMemoryTest, AGroupThatDoesNotFitIsRefusedWithBothNumbers) {
  FakeClock clock;
  LineJournal journal;
  Jobs own(ServerIndex{0}, clock);
  CoordinatorOptions options;
  options.available_memory = [] { return (uint64_t{3} << 20) + (64 << 10); };
  AppliedCoordinator coordinator(options, PlanLog(1, ""), own, clock, journal);
  coordinator.Start();
  auto link = std::make_shared<FakeMember>();
  Hello hello;
  hello.protocol_version = kProtocolVersion;
  hello.job = "big";
  hello.incarnation = Incarnation{1};
  hello.world_size = 1;
  const absl::StatusOr<MemberKey> member = coordinator.Admit(hello, link);
  ASSERT_TRUE(member.ok());

  // The need is one contribution and two results of 1 MiB each, and the bookkeeping of the chunks.
  // It just fits.
  coordinator.Register(*member, 1, {"fits", {{"t", DType::kF32, {1 << 18}}}, Reduction::kSum, 0});
  EXPECT_EQ(link->Last<Registered>().request, 1u);
  coordinator.Register(*member, 2, {"big", {{"t", DType::kF32, {1 << 18}}}, Reduction::kSum, 0});
  EXPECT_EQ(link->Last<Refused>().request, 2u);
  ExpectError(link->Last<Refused>().error, absl::StatusCode::kResourceExhausted,
              {"\"big\"", "1048576 bytes in 8 chunks", "for 1 members' contributions",
               "2 arrays of results", "3211264 bytes are available", "reserved"});
  // The slots of an optimizer count as well.
  coordinator.Register(*member, 3, {"adam", {{"t", DType::kF32, {1 << 17}}}, Optimizer(Adam{}), 0});
  EXPECT_EQ(link->Last<Refused>().request, 3u);
  ExpectError(link->Last<Refused>().error, absl::StatusCode::kResourceExhausted,
              {"524288 bytes", "6 arrays of results"});
}

TEST_F(CoordinatorTest, RefusesOnBehalfOfWhoeverCouldNotReadTheRequest) {
  const Joined a = Join("a", 1);
  coordinator_.Refuse(*a.key, 4, absl::InvalidArgumentError("unknown dtype 99"));
  EXPECT_EQ(a.link->Last<Refused>().request, 4u);
  EXPECT_EQ(a.link->generations.back(), Generation{1});
}

TEST_F(CoordinatorTest, AnEndIsAnsweredAndRefusedForAGroupThatThereIsNot) {
  const Joined a = Join("a", 2), b = Join("b", 2);
  coordinator_.Register(*a.key, 1, Model());
  coordinator_.End(*a.key, 2, GroupId{0}, Round{0}, false);
  EXPECT_EQ(a.link->Last<Done>().request, 2u);
  EXPECT_THAT(Push(b, 1)->error(), IsOk());
  coordinator_.End(*a.key, 3, GroupId{4}, Round{0}, false);
  EXPECT_EQ(a.link->Last<Refused>().request, 3u);
  ExpectError(a.link->Last<Refused>().error, kInvalid, {"group 4", "\"iris\"", "1 groups"});
}

}  // namespace
}  // namespace syncgrads::server
